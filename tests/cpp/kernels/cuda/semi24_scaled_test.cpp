// The CUDA rows of 8-bit 2:4 weights on numbers whose sums are exact, so that every row has to write the bits
// of the reference; where NaN goes; and the metadata against the layout's own functions.
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
#include "kernels/semi24_linear/sm90/decode/entry.h"
#include "kernels/semi24_linear/sm90/forward_wgmma/entry.h"
#include "runtime/cuda.h"
#include "sparseloom/generic/reference.h"
#include "sparseloom/semi24_ops.h"

namespace sparseloom::testing {
namespace {

namespace cuda = kernels::cuda;
using kernels::load;
using kernels::store;

struct Shape {
  std::int64_t m, cols, rows;
};

/// How a product is called beside its operands.
struct Epilogue {
  DType out;
  bool x_each, w_each, bias, fast_accum;
  Activation activation;
};
constexpr Epilogue kEpilogues[] = {{DType::bf16, true, true, true, false, Activation::relu},
                                   {DType::f32, false, true, false, true, Activation::none},
                                   {DType::bf16, true, false, false, true, Activation::none},
                                   {DType::f32, true, true, true, false, Activation::relu}};

std::vector<std::byte> as_bytes(const std::vector<float>& list) {
  std::vector<std::byte> bytes(list.size() * sizeof(float));
  if (!list.empty()) std::memcpy(bytes.data(), list.data(), bytes.size());
  return bytes;
}

/// int8 of the whole range, e4m3 of small integers. `shift`: elements between the allocation and x, and
/// behind each of its rows and of the output's.
struct Operands {
  Operands(DType type, const Shape& s, std::int64_t gap)
      : dtype(type), shape(s), shift(gap), x_stride(s.cols + gap), out_stride(s.rows + gap) {
    core::Rng rng(static_cast<std::uint64_t>(s.m * 7 + s.cols * 3 + s.rows));
    view.rows = s.rows, view.cols = s.cols;
    positions.resize(static_cast<std::size_t>(s.rows * view.position_bytes()));
    values.resize(static_cast<std::size_t>(s.rows * view.row_values()));
    static constexpr unsigned kPairs[] = {0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110};
    for (std::int64_t r = 0; r < s.rows; ++r)
      for (std::int64_t g = 0; g < view.groups(); ++g) {
        const unsigned pair = kPairs[rng.below(6)];
        auto& byte = positions[static_cast<std::size_t>(r * view.position_bytes() + g / 2)];
        byte = static_cast<std::uint8_t>(byte | pair << (g % 2 * 4));
        for (int e = 0; e < 2; ++e) {
          const bool inside = 4 * g + static_cast<std::int64_t>(pair >> (2 * e) & 3) < s.cols;
          values[static_cast<std::size_t>(r * view.row_values() + 2 * g + e)] =
              inside ? element(rng) : std::byte{0};
        }
      }
    view.positions = positions.data();
    x.resize(static_cast<std::size_t>(shift + s.m * x_stride));
    for (std::byte& each : x) each = element(rng);
    for (std::int64_t i = 0; i < s.m; ++i) x_scale.push_back(static_cast<float>(0.1 + rng.uniform()));
    for (std::int64_t i = 0; i < s.rows; ++i) w_scale.push_back(static_cast<float>(0.1 + rng.uniform()));
  }

  std::byte element(core::Rng& rng) const {
    if (dtype == DType::i8) return static_cast<std::byte>(rng.below(256));
    static constexpr std::uint8_t kIntegers[] = {0x00, 0x38, 0x40, 0x44, 0xb8, 0xc0, 0xc4};  // 0, +-1 to +-3
    return std::byte{kIntegers[rng.below(7)]};
  }

  std::vector<std::byte> bias(DType out) const {
    std::vector<std::byte> all(static_cast<std::size_t>(shape.rows) * size_of(out));
    core::Rng rng(11);
    for (std::int64_t i = 0; i < shape.rows; ++i)
      store(out, all.data(), i, static_cast<double>(rng.below(1000)) - 500);
    return all;
  }

  MatmulArgs args(const Epilogue& e) const {
    MatmulArgs args;
    args.dtype = dtype, args.m = shape.m, args.out_dtype = e.out, args.out_stride = out_stride;
    args.a_stride = x_stride, args.activation = e.activation, args.fast_accum = e.fast_accum;
    args.a_scale_each = e.x_each, args.w_scale_each = e.w_each;
    return args;
  }

  /// The outputs by the reference; 0xa5 behind each row.
  std::vector<std::byte> answer(const Epilogue& e) const {
    std::vector<std::byte> out(static_cast<std::size_t>(shape.m * out_stride) * size_of(e.out),
                               std::byte{0xa5});
    const std::vector<std::byte> shifts = bias(e.out);
    MatmulArgs call = args(e);
    call.a = x.data() + shift, call.values = values.data(), call.out = out.data();
    call.a_scale = x_scale.data(), call.w_scale = w_scale.data();
    call.bias = e.bias ? shifts.data() : nullptr;
    kernels::generic::forward<Semi24>(call, view, Executor::serial());
    return out;
  }

  DType dtype;
  Shape shape;
  std::int64_t shift, x_stride, out_stride;
  Semi24View view;
  std::vector<std::uint8_t> positions;
  std::vector<std::byte> values, x;
  std::vector<float> x_scale, w_scale;
};

struct ScaledRow {
  std::string name;
  int (*run)(const MatmulArgs& args, const Semi24View& w, int variant);
  int variant;
};
std::vector<ScaledRow> scaled_rows() {
  std::vector<ScaledRow> list{
      {"dots",
       [](const MatmulArgs& args, const Semi24View& w, int) { return cuda::sm80_semi24_dots(args, w); }, 0}};
  if (runtime::cuda_device(0).sm != 90) return list;
  for (int i = 0; i < cuda::semi24::kTileCount; ++i)
    list.push_back({"wgmma tile " + std::to_string(i),
                    [](const MatmulArgs& args, const Semi24View& w, int v) {
                      return cuda::sm90_semi24_wgmma({args, w.rows, w.cols, w.metadata}, v);
                    },
                    i});
  for (int ranks = 1; ranks <= cuda::semi24::kMostRanks; ranks *= 2)
    list.push_back({"decode ranks " + std::to_string(ranks),
                    [](const MatmulArgs& args, const Semi24View& w, int v) {
                      return cuda::sm90_semi24_decode({args, w.rows, w.cols, w.metadata}, v);
                    },
                    ranks});
  return list;
}

/// Runs every row that takes the operands, and compares with the reference, where NaN equals NaN. Returns how
/// many ran.
int run_rows(const Operands& o, const Epilogue& e) {
  const Stream stream;
  const OnGpu positions(testing::as_bytes(o.positions)), values(o.values), x(o.x), bias(o.bias(e.out)),
      x_scale(as_bytes(o.x_scale)), w_scale(as_bytes(o.w_scale));
  const OnGpu metadata(std::vector<std::byte>(
      static_cast<std::size_t>(semi24_metadata_bytes(o.shape.rows, o.shape.cols, o.dtype)), std::byte{0xff}));
  Semi24View w = o.view;
  w.positions = reinterpret_cast<const std::uint8_t*>(positions.get());
  w.metadata = metadata.get();
  semi24_order(w, o.dtype, metadata.get(), Executor::cuda(0, stream.get()));
  const std::vector<std::byte> expected = o.answer(e);
  const std::size_t size = size_of(e.out);
  int ran = 0;
  for (const ScaledRow& each : scaled_rows()) {
    SCOPED_TRACE(each.name);
    const OnGpu out(std::vector<std::byte>(expected.size(), std::byte{0xa5}));
    MatmulArgs args = o.args(e);
    args.device = 0, args.stream = stream.get();
    args.a = x.get() + o.shift, args.values = values.get(), args.out = out.get();
    args.a_scale = reinterpret_cast<const float*>(x_scale.get());
    args.w_scale = reinterpret_cast<const float*>(w_scale.get());
    args.bias = e.bias ? bias.get() : nullptr;
    const int error = each.run(args, w, each.variant);
    if (error == cudaErrorInvalidValue) continue;
    EXPECT_EQ(error, cudaSuccess);
    stream.wait();
    ++ran;
    const std::vector<std::byte> got = out.read();
    for (std::int64_t i = 0; i < o.shape.m * o.out_stride; ++i) {
      const std::size_t at = static_cast<std::size_t>(i) * size;
      if (std::memcmp(got.data() + at, expected.data() + at, size) == 0) continue;
      const double is = load(e.out, got.data(), i), should = load(e.out, expected.data(), i);
      if (i % o.out_stride < o.shape.rows && ((std::isnan(is) && std::isnan(should)) || is == should))
        continue;
      ADD_FAILURE() << "token " << i / o.out_stride << ", output " << i % o.out_stride << ": " << is
                    << " for " << should;
      break;
    }
  }
  return ran;
}

class CudaSmallSemi24Scaled : public ::testing::TestWithParam<DType> {
 protected:
  void expect_all(const Shape& shape, std::int64_t gap, int least) {
    for (const Epilogue& e : kEpilogues) {
      SCOPED_TRACE(std::to_string(shape.m) + " x " + std::to_string(shape.cols) + " x " +
                   std::to_string(shape.rows) + " gap " + std::to_string(gap) + " to " + name_of(e.out) +
                   (e.fast_accum ? " fast" : ""));
      EXPECT_GE(run_rows(Operands(GetParam(), shape, gap), e), least);
      if (HasFailure()) return;
    }
  }
};

std::vector<DType> eights() {
  if (runtime::cuda_device(0).sm < 80) return {};
  return {DType::i8, DType::f8e4m3};
}

TEST_P(CudaSmallSemi24Scaled, WritesTheReferencesBits) {
  const int least = runtime::cuda_device(0).sm == 90 ? 3 : 1;  // two tiles beside the dots
  std::int64_t gap = 0;                                        // in turn: sanitizers are slow
  for (const Shape& shape :
       {Shape{1, 32, 8}, Shape{16, 256, 128}, Shape{64, 512, 264}, Shape{33, 1056, 136}, Shape{200, 288, 320},
        Shape{129, 160, 520}, Shape{300, 1024, 64}, Shape{17, 128, 72}, Shape{40, 2080, 136}}) {
    expect_all(shape, gap, least);
    gap = 16 - gap;
  }
}

TEST_P(CudaSmallSemi24Scaled, TakesAnySizeAndAlignment) {
  for (const Shape& shape :
       {Shape{1, 1, 1}, Shape{3, 5, 7}, Shape{70, 655, 77}, Shape{17, 130, 33}, Shape{65, 402, 129}})
    expect_all(shape, shape.m % 2 == 0 ? 0 : 3, 1);
}

// What x holds under an element that is not stored reaches no output; scales of any kind are multiplied.
TEST_P(CudaSmallSemi24Scaled, NanReachesWhatIsStored) {
  for (const Shape& shape : {Shape{40, 288, 136}, Shape{130, 160, 264}}) {
    Operands o(GetParam(), shape, 0);
    core::Rng rng(5);
    if (GetParam() == DType::f8e4m3)
      for (int i = 0; i < 8; ++i)
        o.x[rng.below(static_cast<std::uint64_t>(shape.m * shape.cols))] =
            static_cast<std::byte>(i % 2 == 0 ? 0xff : 0x7f);
    o.x_scale[1] = 0, o.x_scale[2] = std::numeric_limits<float>::infinity();
    o.w_scale[3] = std::numeric_limits<float>::quiet_NaN(), o.w_scale[4] = 0;
    for (const Epilogue& e : kEpilogues) EXPECT_GE(run_rows(o, e), 1);
  }
}

// Word by word, as metadata.h says.
TEST_P(CudaSmallSemi24Scaled, MetadataIsThePositionsInOrder) {
  for (const Shape& shape : {Shape{1, 4, 1}, Shape{1, 300, 70}, Shape{1, 1024, 128}}) {
    const Operands o(GetParam(), shape, 0);
    const Stream stream;
    const OnGpu positions(testing::as_bytes(o.positions));
    const OnGpu metadata(std::vector<std::byte>(
        static_cast<std::size_t>(semi24_metadata_bytes(shape.rows, shape.cols, o.dtype)), std::byte{0xff}));
    Semi24View w = o.view;
    w.positions = reinterpret_cast<const std::uint8_t*>(positions.get());
    semi24_order(w, o.dtype, metadata.get(), Executor::cuda(0, stream.get()));
    stream.wait();
    const std::vector<std::byte> got = metadata.read();
    const std::int64_t tile_cols = (shape.cols + 255) / 256;
    for (std::size_t at = 0; at < got.size() / 4; ++at) {
      std::uint32_t word;
      std::memcpy(&word, got.data() + at * 4, 4);
      const auto in_tile = static_cast<std::int64_t>(at % 512), tile = static_cast<std::int64_t>(at / 512);
      const std::int64_t lane = in_tile / 4 % 32,
                         row = tile / tile_cols * 64 + in_tile / 128 * 16 + lane / 4 + lane % 2 * 8;
      const std::int64_t group = tile % tile_cols * 64 + in_tile % 4 * 16 + lane / 2 % 2 * 8;
      for (std::int64_t i = 0; i < 8; ++i) {
        const std::int64_t g = group + i;
        const unsigned expected = row < shape.rows && g < o.view.groups() ? o.view.group(row, g) : 4;
        ASSERT_EQ(word >> (i * 4) & 15u, expected) << "row " << row << " group " << g;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, CudaSmallSemi24Scaled, ::testing::ValuesIn(eights()),
                         [](const auto& info) { return std::string(name_of(info.param)); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmallSemi24Scaled);

}  // namespace
}  // namespace sparseloom::testing
