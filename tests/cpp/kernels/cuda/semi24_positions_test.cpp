// The CUDA rows of 2:4 weights that read the positions of record (dX of 16 bits, and fp32), on numbers whose
// sums are exact: every instance writes the bits of the answer; and where NaN goes.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/rng.h"
#include "kernels/cuda/on_gpu.h"
#include "kernels/semi24_linear/sm80/entries.h"
#include "kernels/semi24_linear/sm90/dx_expanded/entry.h"
#include "runtime/cuda.h"
#include "sparseloom/generic/scalar.h"
#include "sparseloom/semi24.h"

namespace sparseloom::testing {
namespace {

namespace cuda = kernels::cuda;
using kernels::load;
using kernels::store;

struct Shape {
  std::int64_t m, cols, rows;
};

/// W and the dense operand a, of small integers. `gap`: elements behind each row of a and of the output.
struct Operands {
  Operands(DType type, Direction way, const Shape& s, std::int64_t gap)
      : dtype(type),
        direction(way),
        shape(s),
        width(way == Direction::dx ? s.cols : s.rows),
        a_stride(s.cols + s.rows - width + gap),
        out_stride(width + gap) {
    core::Rng rng(static_cast<std::uint64_t>(s.m * 5 + s.cols * 3 + s.rows));
    const auto integer = [&] { return static_cast<double>(rng.below(7)) - 3; };
    const auto fill = [&](std::vector<std::byte>& data, std::int64_t count) {
      data.resize(bytes(count));
      for (std::int64_t i = 0; i < count; ++i) store(dtype, data.data(), i, integer());
    };
    view.rows = s.rows, view.cols = s.cols;
    positions.resize(static_cast<std::size_t>(s.rows * view.position_bytes()));
    static constexpr unsigned kPairs[] = {0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110};
    for (std::int64_t r = 0; r < s.rows; ++r)
      for (std::int64_t g = 0; g < view.groups(); ++g) {
        auto& byte = positions[static_cast<std::size_t>(r * view.position_bytes() + g / 2)];
        byte = static_cast<std::uint8_t>(byte | kPairs[rng.below(6)] << (g % 2 * 4));
      }
    view.positions = positions.data();
    fill(values, s.rows * view.row_values());
    fill(a, s.m * a_stride);
    fill(bias, s.rows);
    fill(residual, s.m * out_stride);
  }

  std::size_t bytes(std::int64_t count) const { return static_cast<std::size_t>(count) * size_of(dtype); }

  /// The outputs, computed in double; 0xa5 behind each row.
  std::vector<std::byte> answer(bool epilogue) const {
    std::vector<std::byte> out(bytes(shape.m * out_stride), std::byte{0xa5});
    std::vector<double> sums(static_cast<std::size_t>(width));
    for (std::int64_t t = 0; t < shape.m; ++t) {
      sums.assign(sums.size(), 0.0);
      for (std::int64_t r = 0; r < shape.rows; ++r)
        Semi24::for_each_in_row(view, r, [&](std::int64_t column, std::int64_t slot) {
          const bool dx = direction == Direction::dx;
          sums[static_cast<std::size_t>(dx ? column : r)] +=
              load(dtype, values.data(), slot) * load(dtype, a.data(), t * a_stride + (dx ? r : column));
        });
      for (std::int64_t i = 0; i < width; ++i) {
        double y = sums[static_cast<std::size_t>(i)];
        if (epilogue) {
          y += load(dtype, bias.data(), i);
          y = (y < 0 ? 0 : y) + load(dtype, residual.data(), t * out_stride + i);
        }
        store(dtype, out.data(), t * out_stride + i, y);
      }
    }
    return out;
  }

  DType dtype;
  Direction direction;
  Shape shape;
  std::int64_t width, a_stride, out_stride;
  Semi24View view;
  std::vector<std::uint8_t> positions;
  std::vector<std::byte> values, a, bias, residual;
};

struct Ran {
  std::string name;
  int error;
  std::vector<std::byte> out;
  bool may_run;
};

/// What every instance writes.
std::vector<Ran> run_all(const Operands& o, bool epilogue = false) {
  const Stream stream;
  const OnGpu positions(as_bytes(o.positions)), values(o.values), a(o.a), bias(o.bias), residual(o.residual);
  Semi24View w = o.view;
  w.positions = reinterpret_cast<const std::uint8_t*>(positions.get());
  std::vector<Ran> all;
  const auto run = [&](const std::string& name, bool may_run, auto entry) {
    const OnGpu out(std::vector<std::byte>(o.bytes(o.shape.m * o.out_stride), std::byte{0xa5}));
    MatmulArgs args;
    args.direction = o.direction, args.dtype = o.dtype, args.m = o.shape.m;
    args.device = 0, args.stream = stream.get();
    args.a = a.get(), args.a_stride = o.a_stride;
    args.values = values.get(), args.out = out.get(), args.out_stride = o.out_stride;
    if (epilogue) {
      args.activation = Activation::relu, args.bias = bias.get();
      args.residual = residual.get(), args.residual_stride = o.out_stride;
    }
    const int error = entry(args);
    stream.wait();
    all.push_back({name, error, out.read(), may_run});
  };
  const bool f32 = o.dtype == DType::f32, dx = o.direction == Direction::dx;
  const int count = f32 ? cuda::semi24_ffma::kTokensCount : cuda::semi24_dx::kTileCount;
  const int most_ranks = !dx || runtime::cuda_device(0).sm != 90 ? 1 : 8;
  for (int i = 0; i < count; ++i)
    for (int ranks = 1; ranks <= most_ranks; ranks *= 2) {
      const std::string name = "instance " + std::to_string(i) + " ranks " + std::to_string(ranks);
      if (!f32)
        run(name, ranks == 1 || (cuda::semi24_dx::kTiles[i].divides && ranks <= (o.shape.rows + 63) / 64),
            [&](const MatmulArgs& args) { return cuda::sm90_semi24_dx(args, w, i, ranks); });
      else if (dx)
        run(name, true, [&](const MatmulArgs& args) { return cuda::sm80_semi24_ffma_dx(args, w, i, ranks); });
      else
        run(name, true, [&](const MatmulArgs& args) { return cuda::sm80_semi24_ffma_forward(args, w, i); });
    }
  return all;
}

void expect_exact(const Operands& o, bool epilogue) {
  SCOPED_TRACE(std::to_string(o.shape.m) + " x " + std::to_string(o.shape.cols) + " x " +
               std::to_string(o.shape.rows) + " stride " + std::to_string(o.out_stride));
  const std::vector<std::byte> expected = o.answer(epilogue);
  for (const Ran& ran : run_all(o, epilogue)) {
    SCOPED_TRACE(ran.name);
    EXPECT_EQ(ran.error, ran.may_run ? cudaSuccess : cudaErrorInvalidValue);
    if (ran.error != cudaSuccess) continue;
    for (std::int64_t at = 0; at < o.shape.m * o.out_stride; ++at) {
      const std::size_t byte = o.bytes(at);
      const double is = load(o.dtype, ran.out.data(), at), should = load(o.dtype, expected.data(), at);
      if (std::memcmp(ran.out.data() + byte, expected.data() + byte, size_of(o.dtype)) == 0 ||
          (at % o.out_stride < o.width && is == should))
        continue;
      ADD_FAILURE() << "token " << at / o.out_stride << ", output " << at % o.out_stride << ": " << is
                    << " for " << should;
      break;
    }
  }
}

class CudaSmallSemi24Dx : public ::testing::TestWithParam<DType> {};

std::vector<DType> on_hopper() {
  if (runtime::cuda_device(0).sm != 90) return {};
  return {DType::bf16, DType::f16};
}

TEST_P(CudaSmallSemi24Dx, WritesTheExactSums) {
  for (const Shape& shape : {Shape{1, 32, 8},
                             {16, 256, 128},
                             {33, 160, 1040},
                             {64, 512, 264},
                             {200, 288, 320},
                             {129, 544, 144},
                             {300, 64, 1024},
                             {17, 1312, 72}})
    for (const std::int64_t gap : {0, 8}) {
      expect_exact(Operands(GetParam(), Direction::dx, shape, gap), false);
      if (HasFailure()) return;
    }
}

// A NaN in dY reaches all inputs of its token, and no other token.
TEST_P(CudaSmallSemi24Dx, NanStaysInItsToken) {
  const Shape shape{40, 288, 136};
  Operands o(GetParam(), Direction::dx, shape, 0);
  const std::vector<std::byte> expected = o.answer(false);
  store(o.dtype, o.a.data(), 7 * o.a_stride + 3, std::numeric_limits<double>::quiet_NaN());
  for (const Ran& ran : run_all(o)) {
    if (ran.error != cudaSuccess) continue;
    SCOPED_TRACE(ran.name);
    for (std::int64_t at = 0; at < shape.m * o.out_stride; ++at) {
      const double is = load(o.dtype, ran.out.data(), at);
      if (at / o.out_stride == 7) {
        ASSERT_TRUE(std::isnan(is)) << at;
      } else {
        ASSERT_EQ(is, load(o.dtype, expected.data(), at)) << at;
      }
    }
  }
}

TEST_P(CudaSmallSemi24Dx, RefusesWhatItCannotAddress) {
  for (const Shape& shape : {Shape{4, 48, 64}, {4, 64, 60}})
    for (const Ran& ran : run_all(Operands(GetParam(), Direction::dx, shape, 0)))
      EXPECT_EQ(ran.error, cudaErrorInvalidValue) << ran.name;
}

INSTANTIATE_TEST_SUITE_P(, CudaSmallSemi24Dx, ::testing::ValuesIn(on_hopper()),
                         [](const auto& info) { return std::string(name_of(info.param)); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmallSemi24Dx);

class CudaSmallSemi24Ffma : public ::testing::TestWithParam<DType> {};

TEST_P(CudaSmallSemi24Ffma, WritesTheExactSums) {
  for (const Shape& shape :
       {Shape{1, 8, 4}, {1, 1032, 20}, {7, 264, 136}, {8, 512, 1028}, {41, 136, 300}, {64, 2056, 72}})
    for (const std::int64_t gap : {0, 4}) {
      expect_exact(Operands(GetParam(), Direction::dx, shape, gap), false);
      expect_exact(Operands(GetParam(), Direction::forward, shape, gap), false);
      expect_exact(Operands(GetParam(), Direction::forward, shape, gap), true);
      if (HasFailure()) return;
    }
}

// Only what is stored is multiplied: every other output keeps its number.
TEST_P(CudaSmallSemi24Ffma, NanReachesWhatIsStored) {
  const Shape shape{9, 264, 132};
  for (const Direction direction : {Direction::forward, Direction::dx}) {
    Operands o(GetParam(), direction, shape, 0);
    store(o.dtype, o.a.data(), 4 * o.a_stride + 3, std::numeric_limits<double>::quiet_NaN());
    const std::vector<std::byte> expected = o.answer(false);
    for (const Ran& ran : run_all(o)) {
      SCOPED_TRACE(ran.name);
      EXPECT_EQ(ran.error, cudaSuccess);
      for (std::int64_t at = 0; at < shape.m * o.out_stride; ++at) {
        const double is = load(o.dtype, ran.out.data(), at), should = load(o.dtype, expected.data(), at);
        ASSERT_TRUE(is == should || (std::isnan(is) && std::isnan(should))) << at;
      }
    }
  }
}

std::vector<DType> on_any_gpu() {
  if (runtime::cuda_device(0).sm < 80) return {};
  return {DType::f32};
}

INSTANTIATE_TEST_SUITE_P(, CudaSmallSemi24Ffma, ::testing::ValuesIn(on_any_gpu()),
                         [](const auto& info) { return std::string(name_of(info.param)); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmallSemi24Ffma);

}  // namespace
}  // namespace sparseloom::testing
