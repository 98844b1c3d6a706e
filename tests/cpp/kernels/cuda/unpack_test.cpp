// pack, its sum, unpack and activate on the device against their twins on the host: bit for bit, for every
// element size, edge and alignment.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "kernels/cuda/device_call.h"
#include "kernels/shared/activation/activation.h"
#include "kernels/shared/bsr/pack.h"
#include "sparseloom/conv_ops.h"
#include "sparseloom/layout.h"

namespace sparseloom::testing {
namespace {

namespace cuda = kernels::cuda;

constexpr BlockShape kBlocks[] = {{8, 8}, {8, 128}, {16, 32}, {128, 8}, {64, 64}, {128, 128}};

/// Device copy of some bytes between guards.
class Buffer {
 public:
  Buffer(const void* data, std::size_t bytes) : bytes_(bytes) {
    std::vector<std::byte> all(bytes + 2 * kAround, kPoison);
    if (bytes) std::memcpy(all.data() + kAround, data, bytes);
    EXPECT_CUDA(cudaMalloc(&data_, all.size()));
    EXPECT_CUDA(cudaMemcpy(data_, all.data(), all.size(), cudaMemcpyHostToDevice));
    EXPECT_CUDA(cudaDeviceSynchronize());  // the copy may still be under way, and the test's stream does not
                                           // wait for it
  }
  template <class T>
  explicit Buffer(const std::vector<T>& list) : Buffer(list.data(), list.size() * sizeof(T)) {}
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  template <class T>
  T* get() const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(data_) + kAround);
  }
  void* at(const Matrix& matrix) const {
    return get<std::byte>() + matrix.offset * static_cast<std::int64_t>(size_of(matrix.dtype));
  }

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all(bytes_ + 2 * kAround);
    EXPECT_CUDA(cudaMemcpy(all.data(), data_, all.size(), cudaMemcpyDeviceToHost));
    for (std::size_t i = 0; i < kAround; ++i) {
      EXPECT_EQ(all[i], kPoison) << "wrote " << kAround - i << " bytes before";
      EXPECT_EQ(all[kAround + bytes_ + i], kPoison) << "wrote " << i << " bytes behind";
    }
    return {all.begin() + kAround, all.end() - kAround};
  }

 private:
  static constexpr std::size_t kAround = 1024;
  void* data_ = nullptr;
  std::size_t bytes_;
};

// Any bits, copies look at none; a prime period, so that no two rows agree.
void fill(Matrix& matrix, std::uint64_t seed) {
  std::vector<std::byte> table(8191);
  core::Rng rng(seed);
  for (std::byte& b : table) b = static_cast<std::byte>(rng.below(256));
  const std::size_t size = size_of(matrix.dtype);
  std::size_t next = 0;
  for (std::int64_t r = 0; r < matrix.rows; ++r) {
    auto* const row =
        static_cast<std::byte*>(matrix.data()) + static_cast<std::size_t>(r * matrix.stride) * size;
    for (std::size_t i = 0; i < static_cast<std::size_t>(matrix.cols) * size; ++i)
      row[i] = table[next++ % table.size()];
  }
}

MatrixView view_of(const Matrix& matrix, void* data) {
  return {data, matrix.dtype, matrix.rows, matrix.cols, matrix.stride};
}

struct Layout {
  Instance pattern;  // for its index alone
  Matrix dense, values;
  Buffer crow, col;

  Layout(DType dtype, BlockShape block, std::int64_t cut, std::int64_t shift, double density)
      : pattern([&] {
          Case c;
          c.m = 1, c.rows = 3 * block.rows - cut, c.cols = 4 * block.cols - cut, c.block = block,
          c.density = density;
          return c;
        }()),
        dense(dtype, pattern.c.rows, pattern.c.cols, shift),
        values(dtype, pattern.values.rows, block.cols, 0, shift),
        crow(pattern.crow),
        col(pattern.col) {}

  IndexView on_device() const {
    IndexView index = pattern.index();
    index.crow = crow.get<std::int32_t>(), index.col = col.get<std::int32_t>();
    return index;
  }
};

class CudaSmallCopies : public ::testing::TestWithParam<DType> {
 protected:
  template <class Check>
  static void for_each_layout(Check check) {
    for (const BlockShape block : kBlocks)
      for (const auto& [cut, shift] : {std::pair{0, 0}, {1, 1}, {5, 0}, {0, 3}, {3, 4}})
        for (const double density : {0.0, 0.4, 1.0}) {
          SCOPED_TRACE("block " + to_string(block) + " cut " + std::to_string(cut) + " shift " +
                       std::to_string(shift) + " density " + std::to_string(density));
          Layout layout(GetParam(), block, cut, shift, density);
          check(layout);
          if (HasFailure()) return;  // thousands of bytes would follow
        }
  }
};

TEST_P(CudaSmallCopies, UnpackMatchesTheHost) {
  for_each_layout([](Layout& layout) {
    fill(layout.values, 1);
    const Stream stream;
    const Buffer values(layout.values.bytes), dense(layout.dense.bytes);
    EXPECT_CUDA(cuda::sm80_bsr_unpack(layout.on_device(), 1, values.at(layout.values),
                                      view_of(layout.dense, dense.at(layout.dense)), stream.get()));
    stream.wait();
    unpack(layout.pattern.index(), layout.values.data(), view_of(layout.dense, layout.dense.data()));
    EXPECT_TRUE(dense.bytes() == layout.dense.bytes);
    EXPECT_TRUE(values.bytes() == layout.values.bytes);
  });
}

TEST_P(CudaSmallCopies, PackMatchesTheHost) {
  if (is_scaled(GetParam())) return;  // weights are packed before they are quantized
  for_each_layout([](Layout& layout) {
    fill(layout.dense, 2);
    const Stream stream;
    const Buffer values(layout.values.bytes), dense(layout.dense.bytes);
    EXPECT_CUDA(cuda::sm80_bsr_pack(view_of(layout.dense, dense.at(layout.dense)), layout.on_device(), 1,
                                    values.at(layout.values), stream.get()));
    stream.wait();
    pack(view_of(layout.dense, layout.dense.data()), layout.pattern.index(), layout.values.data());
    EXPECT_TRUE(values.bytes() == layout.values.bytes);
    EXPECT_TRUE(dense.bytes() == layout.dense.bytes);
  });
}

// The weight of a convolution: against conv_unpack and conv_pack on the host.
TEST_P(CudaSmallCopies, TapsMatchTheHost) {
  if (is_scaled(GetParam())) return;
  const Executor host;
  for (const std::int64_t taps : {2, 9})
    for_each_layout([&](Layout& layout) {
      const IndexView index = layout.pattern.index();
      const DType dtype = GetParam();
      Matrix weight(dtype, index.rows, taps * index.cols, layout.dense.offset),
          blocks(dtype, layout.values.rows * taps, index.block.cols, 0, layout.values.offset);
      fill(blocks, 3);
      const Stream stream;
      const Buffer values(blocks.bytes), dense(weight.bytes);
      EXPECT_CUDA(cuda::sm80_bsr_unpack(layout.on_device(), taps, values.at(blocks),
                                        view_of(weight, dense.at(weight)), stream.get()));
      stream.wait();
      conv_unpack(index, taps, blocks.data(), view_of(weight, weight.data()), host);
      EXPECT_TRUE(dense.bytes() == weight.bytes);
      fill(weight, 4);
      const Buffer filled(weight.bytes);
      EXPECT_CUDA(cuda::sm80_bsr_pack(view_of(weight, filled.at(weight)), layout.on_device(), taps,
                                      values.at(blocks), stream.get()));
      stream.wait();
      conv_pack(view_of(weight, weight.data()), index, taps, blocks.data(), host);
      EXPECT_TRUE(values.bytes() == blocks.bytes);
    });
}

// Small integers, so that the sums are exact; nothing but zero is added to padding.
TEST_P(CudaSmallCopies, AddAddsWhatPackWrites) {
  if (GetParam() != DType::f32) return;
  for_each_layout([](Layout& layout) {
    for (std::int64_t r = 0; r < layout.dense.rows; ++r)
      for (std::int64_t c = 0; c < layout.dense.cols; ++c)
        layout.dense.set(r, c, static_cast<double>(r * 31 + c * 7));
    for (std::int64_t r = 0; r < layout.values.rows; ++r)
      for (std::int64_t c = 0; c < layout.values.cols; ++c)
        layout.values.set(r, c, static_cast<double>(r - 3 * c));
    Matrix expected = layout.values;
    pack(view_of(layout.dense, layout.dense.data()), layout.pattern.index(), expected.data());
    for (std::int64_t r = 0; r < expected.rows; ++r)
      for (std::int64_t c = 0; c < expected.cols; ++c)
        expected.set(r, c, expected.at(r, c) + layout.values.at(r, c));
    const Stream stream;
    const Buffer values(layout.values.bytes), dense(layout.dense.bytes);
    EXPECT_CUDA(cuda::sm80_bsr_add(view_of(layout.dense, dense.at(layout.dense)), layout.on_device(),
                                   values.at(layout.values), stream.get()));
    stream.wait();
    EXPECT_TRUE(values.bytes() == expected.bytes);
    EXPECT_TRUE(dense.bytes() == layout.dense.bytes);
  });
}

std::vector<DType> one_of_each_size() {
  return when_devices(1).empty() ? std::vector<DType>{}
                                 : std::vector<DType>{DType::f8e4m3, DType::f16, DType::f32, DType::f64};
}
INSTANTIATE_TEST_SUITE_P(, CudaSmallCopies, ::testing::ValuesIn(one_of_each_size()),
                         [](const auto& info) { return std::string(sparseloom::name_of(info.param)); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmallCopies);

class CudaSmallActivate : public ::testing::TestWithParam<DType> {};

TEST_P(CudaSmallActivate, MatchesTheHost) {
  const DType dtype = GetParam();
  const double half_ulp = dtype == DType::f32 ? 0x1p-24 : dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
  for (const Activation activation : activations())
    for (const std::int64_t shift : {0, 1, 3, 8})
      for (const std::int64_t cols : {1, 64, 77, 1000}) {
        Matrix y(dtype, 9, cols, shift);
        for (std::int64_t r = 0; r < y.rows; ++r)
          for (std::int64_t c = 0; c < cols; ++c)
            y.set(r, c, (static_cast<double>((r * cols + c) % 401) - 200) * 0.043);
        y.set(8, cols - 1, std::numeric_limits<double>::quiet_NaN());
        const Stream stream;
        const Buffer buffer(y.bytes);
        EXPECT_CUDA(cuda::sm80_activate(view_of(y, buffer.at(y)), activation, {}, view_of(y, buffer.at(y)),
                                        stream.get()));
        stream.wait();
        Matrix after = y;
        after.bytes = buffer.bytes();
        EXPECT_TRUE(after.padding_untouched());
        for (std::int64_t r = 0; r < y.rows; ++r)
          for (std::int64_t c = 0; c < cols; ++c) {
            const double x = y.at(r, c), expected = activate(activation, x);
            if (std::isnan(x)) {
              EXPECT_TRUE(std::isnan(after.at(r, c)));
            } else {
              ASSERT_NEAR(after.at(r, c), expected,
                          half_ulp * std::abs(expected) + 0x1p-22 * std::abs(x) + 0x1p-25)
                  << sparseloom::name_of(activation) << " of " << x;
            }
          }
      }
}

TEST_P(CudaSmallActivate, AddsAResidual) {
  const DType dtype = GetParam();
  const double half_ulp = dtype == DType::f32 ? 0x1p-24 : dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
  for (const std::int64_t shift : {0, 1, 8})
    for (const std::int64_t cols : {1, 64, 77}) {
      Matrix z(dtype, 9, cols, shift), residual(dtype, 9, cols, shift == 8 ? 1 : shift),
          y(dtype, 9, cols, shift);
      for (std::int64_t r = 0; r < z.rows; ++r)
        for (std::int64_t c = 0; c < cols; ++c) {
          z.set(r, c, (static_cast<double>((r * cols + c) % 401) - 200) * 0.043);
          residual.set(r, c, (static_cast<double>((r * cols + c) % 29) - 14) * 0.31);
        }
      const Stream stream;
      const Buffer from(z.bytes), more(residual.bytes), to(y.bytes);
      EXPECT_CUDA(cuda::sm80_activate(view_of(z, from.at(z)), Activation::silu,
                                      view_of(residual, more.at(residual)), view_of(y, to.at(y)),
                                      stream.get()));
      stream.wait();
      y.bytes = to.bytes();
      EXPECT_TRUE(y.padding_untouched());
      for (std::int64_t r = 0; r < z.rows; ++r)
        for (std::int64_t c = 0; c < cols; ++c) {
          const double activated = activate(Activation::silu, z.at(r, c)),
                       expected = activated + residual.at(r, c);
          ASSERT_NEAR(y.at(r, c), expected,
                      half_ulp * std::abs(expected) + 0x1p-21 * (std::abs(activated) + std::abs(expected)));
        }
    }
}

std::vector<DType> float_types() {
  return when_devices(1).empty() ? std::vector<DType>{}
                                 : std::vector<DType>{DType::f32, DType::f16, DType::bf16};
}
INSTANTIATE_TEST_SUITE_P(, CudaSmallActivate, ::testing::ValuesIn(float_types()),
                         [](const auto& info) { return std::string(sparseloom::name_of(info.param)); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmallActivate);

// Where there is no device the same calls must come back with an error code.
class CudaAbsentCopies : public ::testing::TestWithParam<int> {};

TEST_P(CudaAbsentCopies, ReportAnError) {
  Case c;
  c.m = 1, c.rows = 20, c.cols = 27, c.block = {8, 16}, c.density = 1;
  Instance instance(c);
  Matrix dense(DType::f32, 20, 27, 1);
  EXPECT_NE(cuda::sm80_bsr_unpack(instance.index(), 1, instance.values.data(), view_of(dense, dense.data()),
                                  nullptr),
            0);
  EXPECT_NE(
      cuda::sm80_bsr_pack(view_of(dense, dense.data()), instance.index(), 1, instance.values.data(), nullptr),
      0);
  EXPECT_NE(cuda::sm80_activate(view_of(dense, dense.data()), Activation::relu, {},
                                view_of(dense, dense.data()), nullptr),
            0);
}

INSTANTIATE_TEST_SUITE_P(, CudaAbsentCopies,
                         ::testing::ValuesIn(when_devices(1).empty() ? std::vector<int>{0}
                                                                     : std::vector<int>{}));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaAbsentCopies);

}  // namespace
}  // namespace sparseloom::testing
