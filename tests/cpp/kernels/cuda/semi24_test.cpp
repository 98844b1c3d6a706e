// The CUDA rows of 2:4 weights on numbers whose sums are exact, so that every row has to write the bits of
// the reference; where NaN and Inf go; and metadata and copies against the layout's own functions.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/rng.h"
#include "kernels/cuda/on_gpu.h"
#include "kernels/semi24_linear/rows.h"
#include "kernels/semi24_linear/sm80/entries.h"
#include "kernels/semi24_linear/sm80/forward_mma/entry.h"
#include "kernels/semi24_linear/sm90/decode/entry.h"
#include "kernels/semi24_linear/sm90/forward_wgmma/entry.h"
#include "runtime/cuda.h"
#include "sparseloom/generic/scalar.h"
#include "sparseloom/semi24_ops.h"

namespace sparseloom::testing {
namespace {

namespace cuda = kernels::cuda;
using kernels::load;
using kernels::store;

struct Shape {
  std::int64_t m, cols, rows;
};

/// Operands of small integers. `shift`: elements between the allocation and x, and behind each of its rows.
struct Operands {
  Operands(DType type, const Shape& s, std::int64_t gap)
      : dtype(type), shape(s), shift(gap), x_stride(s.cols + gap), out_stride(s.rows + gap) {
    core::Rng rng(static_cast<std::uint64_t>(s.m * 7 + s.cols * 3 + s.rows));
    view.rows = s.rows, view.cols = s.cols;
    positions.resize(static_cast<std::size_t>(s.rows * view.position_bytes()));
    values.resize(bytes(s.rows * view.row_values()));
    static constexpr unsigned kPairs[] = {0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110};
    for (std::int64_t r = 0; r < s.rows; ++r)
      for (std::int64_t g = 0; g < view.groups(); ++g) {
        const unsigned pair = kPairs[rng.below(6)];
        auto& byte = positions[static_cast<std::size_t>(r * view.position_bytes() + g / 2)];
        byte = static_cast<std::uint8_t>(byte | pair << (g % 2 * 4));
        for (int e = 0; e < 2; ++e) {
          const bool inside = 4 * g + static_cast<std::int64_t>(pair >> (2 * e) & 3) < s.cols;
          store(dtype, values.data(), r * view.row_values() + 2 * g + e, inside ? integer(rng) : 0);
        }
      }
    view.positions = positions.data();
    fill(x, shift + s.m * x_stride, rng);
    fill(bias, s.rows, rng);
    fill(residual, s.m * out_stride, rng);
  }

  static double integer(core::Rng& rng) { return static_cast<double>(rng.below(7)) - 3; }
  std::size_t bytes(std::int64_t count) const { return static_cast<std::size_t>(count) * size_of(dtype); }
  void fill(std::vector<std::byte>& data, std::int64_t count, core::Rng& rng) const {
    data.resize(bytes(count));
    for (std::int64_t i = 0; i < count; ++i) store(dtype, data.data(), i, integer(rng));
  }

  /// The outputs, computed in double from what is stored; 0xa5 behind each row.
  std::vector<std::byte> answer(bool epilogue) const {
    std::vector<std::byte> out(bytes(shape.m * out_stride), std::byte{0xa5});
    for (std::int64_t t = 0; t < shape.m; ++t)
      for (std::int64_t r = 0; r < shape.rows; ++r) {
        double sum = epilogue ? load(dtype, bias.data(), r) : 0;
        Semi24::for_each_in_row(view, r, [&](std::int64_t column, std::int64_t slot) {
          sum += load(dtype, values.data(), slot) * load(dtype, x.data(), shift + t * x_stride + column);
        });
        if (epilogue) sum = (sum < 0 ? 0 : sum) + load(dtype, residual.data(), t * out_stride + r);
        store(dtype, out.data(), t * out_stride + r, sum);
      }
    return out;
  }

  DType dtype;
  Shape shape;
  std::int64_t shift, x_stride, out_stride;
  Semi24View view;
  std::vector<std::uint8_t> positions;
  std::vector<std::byte> values, x, bias, residual;
};

/// Every instance of every kernel, as a call returns cudaErrorInvalidValue where it is not for the operands.
struct Instance24 {
  std::string name;
  int (*run)(const cuda::Semi24Product&, int);
  int variant;
};
std::vector<Instance24> instances() {
  std::vector<Instance24> list;
  if (runtime::cuda_device(0).sm == 90) {
    for (int i = 0; i < cuda::semi24::kTileCount; ++i)
      list.push_back({"wgmma tile " + std::to_string(i),
                      [](const cuda::Semi24Product& p, int v) { return cuda::sm90_semi24_wgmma(p, v); }, i});
    for (int ranks = 1; ranks <= cuda::semi24::kMostRanks; ranks *= 2)
      list.push_back({"decode ranks " + std::to_string(ranks),
                      [](const cuda::Semi24Product& p, int v) { return cuda::sm90_semi24_decode(p, v); },
                      ranks});
  }
  for (int i = 0; i < cuda::semi24_mma::kTileCount; ++i)
    list.push_back({"mma tile " + std::to_string(i),
                    [](const cuda::Semi24Product& p, int v) { return cuda::sm80_semi24_mma(p, v); }, i});
  return list;
}

/// Runs all instances on the operands and compares them with the answer, where NaN equals NaN. Returns how
/// many ran.
int run_all(const Operands& o, bool epilogue) {
  const Stream stream;
  const OnGpu positions(as_bytes(o.positions)), values(o.values), x(o.x), bias(o.bias), residual(o.residual);
  const OnGpu metadata(std::vector<std::byte>(
      static_cast<std::size_t>(semi24_metadata_bytes(o.shape.rows, o.shape.cols, o.dtype)), std::byte{0xff}));
  Semi24View w = o.view;
  w.positions = reinterpret_cast<const std::uint8_t*>(positions.get());
  semi24_order(w, o.dtype, metadata.get(), Executor::cuda(0, stream.get()));
  const std::vector<std::byte> expected = o.answer(epilogue);
  int ran = 0;
  for (const Instance24& each : instances()) {
    SCOPED_TRACE(each.name);
    const OnGpu out(std::vector<std::byte>(expected.size(), std::byte{0xa5}));
    MatmulArgs args;
    args.dtype = o.dtype, args.m = o.shape.m, args.device = 0, args.stream = stream.get();
    args.a = x.get() + o.bytes(o.shift), args.a_stride = o.x_stride;
    args.values = values.get(), args.out = out.get(), args.out_stride = o.out_stride;
    if (epilogue) {
      args.activation = Activation::relu, args.bias = bias.get();
      args.residual = residual.get(), args.residual_stride = o.out_stride;
    }
    const int error = each.run({args, o.shape.rows, o.shape.cols, metadata.get()}, each.variant);
    if (error == cudaErrorInvalidValue) continue;
    EXPECT_EQ(error, cudaSuccess);
    stream.wait();
    ++ran;
    const std::vector<std::byte> got = out.read();
    for (std::int64_t i = 0; i < o.shape.m * o.out_stride; ++i) {
      if (std::memcmp(got.data() + o.bytes(i), expected.data() + o.bytes(i), size_of(o.dtype)) == 0) continue;
      const double is = load(o.dtype, got.data(), i), should = load(o.dtype, expected.data(), i);
      if (i % o.out_stride < o.shape.rows && ((std::isnan(is) && std::isnan(should)) || is == should))
        continue;
      ADD_FAILURE() << "token " << i / o.out_stride << ", output " << i % o.out_stride << ": " << is
                    << " for " << should;
      break;
    }
  }
  return ran;
}

class CudaSmallSemi24 : public ::testing::TestWithParam<DType> {};

std::vector<DType> halves() {
  if (runtime::cuda_device(0).sm < 80) return {};
  return {DType::bf16, DType::f16};
}

constexpr Shape kShapes[] = {{1, 16, 8},      {16, 256, 128},  {64, 512, 264},  {33, 1040, 136},
                             {200, 272, 320}, {129, 144, 520}, {300, 1024, 64}, {17, 128, 72}};

TEST_P(CudaSmallSemi24, WritesTheExactSums) {
  for (const Shape& shape : kShapes)
    for (const std::int64_t gap : {0, 8})
      for (const bool epilogue : {false, true}) {
        SCOPED_TRACE(std::to_string(shape.m) + " x " + std::to_string(shape.cols) + " x " +
                     std::to_string(shape.rows) + " gap " + std::to_string(gap));
        EXPECT_GE(run_all(Operands(GetParam(), shape, gap), epilogue), cuda::semi24_mma::kTileCount);
        if (HasFailure()) return;
      }
}

TEST_P(CudaSmallSemi24, TakesAnySizeAndAlignment) {
  for (const Shape& shape : {Shape{1, 1, 1}, {3, 5, 7}, {70, 655, 77}, {17, 130, 33}, {65, 402, 129}})
    for (const std::int64_t gap : {0, 3})
      for (const bool epilogue : {false, true}) {
        SCOPED_TRACE(std::to_string(shape.m) + " x " + std::to_string(shape.cols) + " x " +
                     std::to_string(shape.rows) + " gap " + std::to_string(gap));
        EXPECT_GE(run_all(Operands(GetParam(), shape, gap), epilogue), cuda::semi24_mma::kTileCount);
        if (HasFailure()) return;
      }
}

// What x holds under an element that is not stored reaches no output. Under a stored zero it does.
TEST_P(CudaSmallSemi24, NanAndInfReachWhatIsStored) {
  for (const Shape& shape : {Shape{40, 272, 136}, {130, 144, 264}}) {
    Operands o(GetParam(), shape, 0);
    core::Rng rng(5);
    for (const double value :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
      for (int i = 0; i < 4; ++i)
        store(o.dtype, o.x.data(),
              static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(shape.m * shape.cols))), value);
    EXPECT_GE(run_all(o, false), cuda::semi24_mma::kTileCount);
    EXPECT_GE(run_all(o, true), cuda::semi24_mma::kTileCount);
  }
}

TEST_P(CudaSmallSemi24, CopiesMatchTheLayout) {
  for (const Shape& shape :
       {Shape{1, 1, 1}, {1, 37, 5}, {1, 128, 64}, {1, 66, 130}, {1, 1032, 70}, {1, 300, 9}}) {
    const Operands o(GetParam(), shape, 0);
    const Stream stream;
    const OnGpu positions(as_bytes(o.positions)), values(o.values);
    const OnGpu dense(std::vector<std::byte>(o.bytes(shape.rows * shape.cols), std::byte{0xff}));
    const OnGpu back(std::vector<std::byte>(o.values.size(), std::byte{0xff}));
    Semi24View w = o.view;
    w.positions = reinterpret_cast<const std::uint8_t*>(positions.get());
    const MatrixView matrix{dense.get(), o.dtype, shape.rows, shape.cols, shape.cols};
    EXPECT_CUDA(cuda::semi24_unpack(w, values.get(), matrix, stream.get()));
    EXPECT_CUDA(cuda::semi24_gather(matrix, w, back.get(), stream.get()));
    stream.wait();
    std::vector<std::byte> expected(o.bytes(shape.rows * shape.cols));
    Semi24::unpack(o.view, o.values.data(), {expected.data(), o.dtype, shape.rows, shape.cols, shape.cols}, 0,
                   shape.rows);
    EXPECT_TRUE(dense.read() == expected);
    EXPECT_TRUE(back.read() == o.values);
  }
}

// Word by word, as metadata.h says.
TEST_P(CudaSmallSemi24, MetadataIsThePositionsInOrder) {
  for (const Shape& shape : {Shape{1, 4, 1}, {1, 300, 70}, {1, 1024, 128}}) {
    const Operands o(GetParam(), shape, 0);
    const Stream stream;
    const OnGpu positions(as_bytes(o.positions));
    const OnGpu metadata(std::vector<std::byte>(
        static_cast<std::size_t>(semi24_metadata_bytes(shape.rows, shape.cols, o.dtype)), std::byte{0xff}));
    Semi24View w = o.view;
    w.positions = reinterpret_cast<const std::uint8_t*>(positions.get());
    semi24_order(w, o.dtype, metadata.get(), Executor::cuda(0, stream.get()));
    stream.wait();
    const std::vector<std::byte> got = metadata.read();
    const std::int64_t tile_cols = (shape.cols + 127) / 128;
    for (std::size_t at = 0; at < got.size() / 4; ++at) {
      std::uint32_t word;
      std::memcpy(&word, got.data() + at * 4, 4);
      const auto in_tile = static_cast<std::int64_t>(at % 256), tile = static_cast<std::int64_t>(at / 256);
      const std::int64_t lane = in_tile / 2 % 32, row = tile / tile_cols * 64 + in_tile / 64 * 16 + lane / 4;
      const std::int64_t group = tile % tile_cols * 32 + in_tile % 2 * 16 + lane % 4 * 4;
      for (std::int64_t i = 0; i < 8; ++i) {
        const std::int64_t r = row + i / 4 * 8, g = group + i % 4;
        const unsigned expected = r < shape.rows && g < o.view.groups() ? o.view.group(r, g) : 4;
        ASSERT_EQ(word >> (i * 4) & 15u, expected) << "row " << r << " group " << g;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, CudaSmallSemi24, ::testing::ValuesIn(halves()),
                         [](const auto& info) { return std::string(name_of(info.param)); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmallSemi24);

}  // namespace
}  // namespace sparseloom::testing
