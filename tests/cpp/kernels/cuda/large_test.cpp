// Matrices of more than 2^31 elements, which 32-bit offsets would fold back onto their beginning: in values,
// and in x, dY and dX. Almost all of them is zero, so that the answer is that of a few blocks or tokens;
// small integers, so that it is exact.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "core/rng.h"
#include "kernels/cuda/device_call.h"
#include "kernels/shared/cost/gpu_rates.h"

namespace sparseloom::testing {
namespace {

constexpr std::int64_t kPast = std::int64_t{1} << 31;

/// Device memory of `count` elements, every byte `fill`.
class Array {
 public:
  Array(DType dtype, std::int64_t count, int fill) : dtype_(dtype) {
    const std::size_t bytes = static_cast<std::size_t>(count) * size_of(dtype);
    EXPECT_CUDA(cudaMalloc(&data_, std::max<std::size_t>(bytes, 1)));
    EXPECT_CUDA(cudaMemset(data_, fill, bytes));
    bytes_ = bytes;
  }
  ~Array() { cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  void* get() const { return data_; }
  void poison() { EXPECT_CUDA(cudaMemset(data_, 0xff, bytes_)); }

  void write(std::int64_t first, const std::vector<double>& values) {
    std::vector<std::byte> bytes(values.size() * size_of(dtype_));
    for (std::size_t i = 0; i < values.size(); ++i)
      store(dtype_, bytes.data(), static_cast<std::int64_t>(i), values[i]);
    EXPECT_CUDA(cudaMemcpy(at(first), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  }
  std::vector<double> read(std::int64_t first, std::int64_t count) const {
    std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size_of(dtype_));
    EXPECT_CUDA(cudaMemcpy(bytes.data(), at(first), bytes.size(), cudaMemcpyDeviceToHost));
    std::vector<double> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = load(dtype_, bytes.data(), static_cast<std::int64_t>(i));
    return values;
  }

 private:
  void* at(std::int64_t i) const {
    return static_cast<std::byte*>(data_) + i * static_cast<std::int64_t>(size_of(dtype_));
  }
  DType dtype_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class Indices {
 public:
  explicit Indices(const std::vector<std::int32_t>& list) {
    EXPECT_CUDA(cudaMalloc(&data_, list.size() * sizeof(std::int32_t)));
    EXPECT_CUDA(cudaMemcpy(data_, list.data(), list.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice));
  }
  ~Indices() { cudaFree(data_); }
  Indices(const Indices&) = delete;
  Indices& operator=(const Indices&) = delete;
  const std::int32_t* get() const { return static_cast<const std::int32_t*>(data_); }

 private:
  void* data_ = nullptr;
};

std::vector<double> integers(std::int64_t count, std::uint64_t seed) {
  core::Rng rng(seed);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& v : values) v = static_cast<double>(rng.below(5)) - 2;
  return values;
}

// fp32 holds these sums; the output's dtype may round them.
void round_to(DType dtype, std::vector<double>& values) {
  for (double& v : values) {
    std::byte element[8];
    store(dtype, element, 0, v);
    v = load(dtype, element, 0);
  }
}

/// A full matrix of weights, both indices of it on host and device.
struct Full {
  IndexView host;
  std::vector<std::int32_t> crow, col, ccol, row, slot;
  Indices d_crow, d_col, d_ccol, d_row, d_slot;

  Full(std::int64_t rows, std::int64_t cols, BlockShape block)
      : host{rows, cols, block, 0, nullptr, nullptr},
        crow(fill_crow()),
        col(fill_col()),
        ccol(static_cast<std::size_t>(host.block_cols()) + 1),
        row(col.size()),
        slot(col.size()),
        d_crow(crow),
        d_col(col),
        d_ccol((transpose(), ccol)),
        d_row(row),
        d_slot(slot) {}

  void set(MatmulArgs& args) const {
    args.index = host;
    args.index.crow = d_crow.get(), args.index.col = d_col.get();
    if (args.direction == Direction::dx) args.transposed = {d_ccol.get(), d_row.get(), d_slot.get()};
  }

 private:
  std::vector<std::int32_t> fill_crow() const {
    std::vector<std::int32_t> list;
    for (std::int64_t r = 0; r <= host.block_rows(); ++r)
      list.push_back(static_cast<std::int32_t>(r * host.block_cols()));
    return list;
  }
  std::vector<std::int32_t> fill_col() const {
    std::vector<std::int32_t> list;
    for (std::int64_t i = 0; i < host.block_rows() * host.block_cols(); ++i)
      list.push_back(static_cast<std::int32_t>(i % host.block_cols()));
    return list;
  }
  void transpose() {
    host.blocks = static_cast<std::int64_t>(col.size()), host.crow = crow.data(), host.col = col.data();
    transpose_index(host, ccol.data(), row.data(), slot.data());
  }
};

Problem problem_of(const MatmulArgs& args) {
  Problem p;
  p.direction = args.direction, p.dtype = args.dtype, p.tf32 = args.tf32, p.device = 0;
  p.m = args.m, p.rows = args.index.rows, p.cols = args.index.cols, p.block = args.index.block,
  p.blocks = args.index.blocks;
  return p;
}

void run(const kernels::Kernel& kernel, MatmulArgs args) {
  const auto planned = kernels::bsr_linear::ask(
      kernel, problem_of(args),
      {runtime::Isa::generic, {}, runtime::cuda_device(0), {}, kernels::cuda::gpu_clusters(0)});
  const std::size_t bytes = planned.workspace_bytes;
  const Array workspace(DType::f32, static_cast<std::int64_t>((bytes + 3) / 4), 0xff);
  EXPECT_CUDA(cudaDeviceSynchronize());
  const Stream stream;
  args.workspace = bytes ? static_cast<std::byte*>(workspace.get()) : nullptr;
  args.device = 0, args.stream = stream.get();
  ASSERT_EQ(kernel.launch(args, planned.schedule, Executor::cuda(0, stream.get())), 0) << kernel.name;
  stream.wait();
}

class CudaLarge : public OnDevice {
 protected:
  MatmulArgs call(std::int64_t m) const {
    MatmulArgs args;
    args.direction = GetParam().direction, args.dtype = GetParam().dtype, args.tf32 = GetParam().tf32,
    args.m = m;
    return args;
  }
  bool forward() const { return GetParam().direction == Direction::forward; }
  bool dw() const { return GetParam().direction == Direction::dw; }
};

TEST_P(CudaLarge, Values) {
  constexpr std::int64_t kSide = 128, kGrid = 363, kWidth = kSide * kGrid, kElements = kSide * kSide;
  static_assert(kWidth * kWidth > kPast);
  const DType dtype = GetParam().dtype;
  const Full full(kWidth, kWidth, {kSide, kSide});
  const std::vector<std::int64_t> slots = {0, kPast / kElements - 1, kPast / kElements, kGrid * kGrid - 1};
  for (const std::int64_t m : {5, 150}) {
    MatmulArgs args = call(m);
    full.set(args);
    const std::vector<double> left = integers(m * kWidth, 1), right = integers(m * kWidth, 2);
    Array a(dtype, m * kWidth, 0), b(dtype, m * kWidth, 0), values(dtype, kWidth * kWidth, dw() ? 0xff : 0);
    Array out(dtype, m * kWidth, 0xff);
    a.write(0, left);
    b.write(0, right);
    args.a = a.get(), args.a_stride = kWidth;
    if (dw()) {
      args.b = b.get(), args.b_stride = kWidth, args.out = values.get(), args.out_stride = kSide;
    } else {
      args.values = values.get(), args.out = out.get(), args.out_stride = kWidth;
    }
    std::map<std::int64_t, std::vector<double>> tiles;
    std::vector<double> expected(static_cast<std::size_t>(dw() ? 0 : m * kWidth));
    for (const std::int64_t slot : slots) {
      std::vector<double>& tile = tiles[slot] =
          dw() ? std::vector<double>(kElements) : integers(kElements, 3 + slot);
      const std::int64_t o = slot / kGrid * kSide, k = slot % kGrid * kSide;
      if (!dw()) values.write(slot * kElements, tile);
      for (std::int64_t t = 0; t < m; ++t)
        for (std::int64_t i = 0; i < kSide; ++i)
          for (std::int64_t j = 0; j < kSide; ++j) {
            double& w = tile[static_cast<std::size_t>(i * kSide + j)];
            if (dw())
              w += left[static_cast<std::size_t>(t * kWidth + o + i)] *
                   right[static_cast<std::size_t>(t * kWidth + k + j)];
            else if (forward())
              expected[static_cast<std::size_t>(t * kWidth + o + i)] +=
                  left[static_cast<std::size_t>(t * kWidth + k + j)] * w;
            else
              expected[static_cast<std::size_t>(t * kWidth + k + j)] +=
                  left[static_cast<std::size_t>(t * kWidth + o + i)] * w;
          }
    }
    round_to(dtype, expected);
    if (dw())
      for (auto& [slot, tile] : tiles) round_to(dtype, tile);
    for (const kernels::Kernel* kernel : runnable_on_device(problem_of(args))) {
      SCOPED_TRACE(std::string(kernel->name) + " m=" + std::to_string(m));
      (dw() ? values : out).poison();
      run(*kernel, args);
      if (dw())
        for (const auto& [slot, tile] : tiles)
          EXPECT_TRUE(values.read(slot * kElements, kElements) == tile) << "block " << slot;
      else
        EXPECT_TRUE(out.read(0, m * kWidth) == expected);
    }
  }
}

// More elements in one matrix of tokens than 2^31; the last tokens alone are not zero.
TEST_P(CudaLarge, Tokens) {
  constexpr std::int64_t kLast = 40, kWide = 1024, kNarrow = 64, m = kPast / kWide + 37;
  const DType dtype = GetParam().dtype;
  for (const bool wide_in : {true, false}) {
    const std::int64_t rows = wide_in ? kNarrow : kWide, cols = wide_in ? kWide : kNarrow;
    const Full full(rows, cols, {64, 32});
    MatmulArgs args = call(m);
    full.set(args);
    const std::int64_t a_width = forward() ? cols : rows, out_width = forward() ? rows : cols;
    const std::vector<double> left = integers(kLast * a_width, 1), right = integers(kLast * cols, 2),
                              w = integers(rows * cols, 3);
    Array a(dtype, m * a_width, 0), b(dtype, dw() ? m * cols : 0, 0), values(dtype, rows * cols, 0);
    Array out(dtype, dw() ? 0 : m * out_width, 0xff);
    a.write((m - kLast) * a_width, left);
    if (dw()) b.write((m - kLast) * cols, right);
    if (!dw()) values.write(0, w);
    args.a = a.get(), args.a_stride = a_width;
    if (dw()) {
      args.b = b.get(), args.b_stride = cols, args.out = values.get(), args.out_stride = 32;
    } else {
      args.values = values.get(), args.out = out.get(), args.out_stride = out_width;
    }
    std::vector<double> expected(static_cast<std::size_t>(dw() ? rows * cols : kLast * out_width));
    for (std::int64_t s = 0; s < rows * cols; ++s) {
      const std::int64_t block = s / (64 * 32), o = block / full.host.block_cols() * 64 + s / 32 % 64,
                         k = block % full.host.block_cols() * 32 + s % 32;
      for (std::int64_t t = 0; t < kLast; ++t) {
        if (dw())
          expected[static_cast<std::size_t>(s)] +=
              left[static_cast<std::size_t>(t * rows + o)] * right[static_cast<std::size_t>(t * cols + k)];
        else if (forward())
          expected[static_cast<std::size_t>(t * rows + o)] +=
              left[static_cast<std::size_t>(t * cols + k)] * w[static_cast<std::size_t>(s)];
        else
          expected[static_cast<std::size_t>(t * cols + k)] +=
              left[static_cast<std::size_t>(t * rows + o)] * w[static_cast<std::size_t>(s)];
      }
    }
    round_to(dtype, expected);
    for (const kernels::Kernel* kernel : runnable_on_device(problem_of(args))) {
      SCOPED_TRACE(std::string(kernel->name) + (wide_in ? " many inputs" : " many outputs"));
      (dw() ? values : out).poison();
      run(*kernel, args);
      if (dw()) {
        EXPECT_TRUE(values.read(0, rows * cols) == expected);
        continue;
      }
      EXPECT_TRUE(out.read((m - kLast) * out_width, kLast * out_width) == expected);
      const std::vector<double> zeros(static_cast<std::size_t>(kLast * out_width));
      EXPECT_TRUE(out.read(0, kLast * out_width) == zeros);
      EXPECT_TRUE(out.read((m - 2 * kLast) * out_width, kLast * out_width) == zeros);
    }
  }
}

// fp32 takes 8.6 GB for the large matrix; a smaller device has no such test.
std::vector<Product> where_it_fits() {
  constexpr std::size_t kNeeded = std::size_t{12} << 30;
  std::vector<Product> list = when_devices(1, kNeeded).empty() ? std::vector<Product>{} : products();
  std::erase_if(list, [](const Product& p) { return p.dtype == DType::f16; });  // the offsets of bf16
  return list;
}

INSTANTIATE_TEST_SUITE_P(, CudaLarge, ::testing::ValuesIn(where_it_fits()), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaLarge);

}  // namespace
}  // namespace sparseloom::testing
