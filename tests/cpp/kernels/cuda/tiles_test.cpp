// Forward of tiles on Hopper, on numbers whose sums are exact: every instance writes the bits of the answer.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "core/rng.h"
#include "kernels/cuda/on_gpu.h"
#include "kernels/semi24_linear/sm80/metadata/metadata.h"
#include "kernels/tiles_linear/sm90/decode/entry.h"
#include "kernels/tiles_linear/sm90/forward_wgmma/entry.h"
#include "runtime/cuda.h"
#include "sparseloom/generic/scalar.h"
#include "sparseloom/tiles_ops.h"

namespace sparseloom::testing {
namespace {

namespace cuda = kernels::cuda;
using kernels::load;
using kernels::store;

struct TilesCase {
  std::int64_t m, cols, rows, side;
  double dense, half;  // shares of the tiles
  bool epilogue = false;
};

/// W, the dense operand and the epilogue's, of small integers.
struct TilesOperands {
  TilesOperands(DType type, const TilesCase& each) : c(each), dtype(type) {
    core::Rng rng(static_cast<std::uint64_t>(c.m * 5 + c.cols * 3 + c.rows));
    const std::int64_t tiles = (c.rows + c.side - 1) / c.side * ((c.cols + c.side - 1) / c.side);
    w.rows = c.rows, w.cols = c.cols, w.side = c.side;
    for (std::int64_t i = 0; i < tiles; ++i) {
      const double drawn = static_cast<double>(rng.below(1000)) / 1000;
      kinds.push_back(drawn < c.dense ? 2 : drawn < c.dense + c.half ? 1 : 0);
      w.dense += kinds.back() == 2, w.halves += kinds.back() == 1;
    }
    table.resize(static_cast<std::size_t>(w.groups() * w.units() * TilesView::kGroup));
    Tiles::fill_table("test", w, kinds.data(), table.data());
    static constexpr unsigned kPairs[] = {0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110};
    for (std::int64_t i = 0; i < w.halves * c.side * (c.side / 8); ++i)
      positions.push_back(static_cast<std::uint8_t>(kPairs[rng.below(6)] | kPairs[rng.below(6)] << 4));
    w.table = table.data(), w.positions = positions.data();
    Tiles::validate("test", w);
    const auto fill = [&](std::vector<std::byte>& data, std::int64_t count) {
      data.resize(static_cast<std::size_t>(count) * 2);
      for (std::int64_t i = 0; i < count; ++i)
        store(dtype, data.data(), i, static_cast<double>(rng.below(5)) - 2);
    };
    fill(values, Tiles::stored(w)), fill(x, c.m * c.cols), fill(bias, c.rows), fill(residual, c.m * c.rows);
  }

  /// Of some tokens, in double.
  double answer(std::int64_t token, std::int64_t row) const {
    double sum = 0;
    Tiles::for_each_in_row(w, row, [&](std::int64_t col, std::int64_t slot) {
      sum += load(dtype, values.data(), slot) * load(dtype, x.data(), token * c.cols + col);
    });
    if (c.epilogue) {
      sum += load(dtype, bias.data(), row);
      sum = (sum < 0 ? 0 : sum) + load(dtype, residual.data(), token * c.rows + row);
    }
    std::byte rounded[2];
    store(dtype, rounded, 0, sum);
    return load(dtype, rounded, 0);
  }

  TilesCase c;
  DType dtype;
  TilesView w;
  std::vector<std::uint8_t> kinds, positions;
  std::vector<std::int32_t> table;
  std::vector<std::byte> values, x, bias, residual;
};

std::vector<std::byte> bytes_of(const std::vector<std::int32_t>& list) {
  std::vector<std::byte> bytes(list.size() * 4);
  if (!list.empty()) std::memcpy(bytes.data(), list.data(), bytes.size());
  return bytes;
}

/// Every instance; `each`(name, the call).
template <class F>
void for_each_instance(const TilesOperands& o, F&& each) {
  for (int tile = 0; tile < cuda::tiles::kTileCount; ++tile)
    each("tile " + std::to_string(tile),
         [tile](const cuda::TilesProduct& product) { return cuda::sm90_tiles_wgmma(product, tile); });
  for (int ranks = 1; o.c.m <= 64 && ranks <= 4 && ranks <= o.w.units(); ranks *= 2)
    each("decode " + std::to_string(ranks),
         [ranks](const cuda::TilesProduct& product) { return cuda::sm90_tiles_decode(product, ranks); });
}

void expect_exact(const TilesOperands& o) {
  SCOPED_TRACE(std::to_string(o.c.m) + " x " + std::to_string(o.c.cols) + " x " + std::to_string(o.c.rows));
  const Stream stream;
  const OnGpu table(bytes_of(o.table)), positions(as_bytes(o.positions)), values(o.values), x(o.x),
      bias(o.bias), residual(o.residual);
  const OnGpu metadata(std::vector<std::byte>(static_cast<std::size_t>(tiles_metadata_bytes(o.w))));
  EXPECT_EQ(cuda::semi24_order_units(reinterpret_cast<const std::uint8_t*>(positions.get()),
                                     o.w.halves * o.c.side, o.c.side, metadata.get(), stream.get()),
            cudaSuccess);
  TilesView w = o.w;
  w.table = reinterpret_cast<const std::int32_t*>(table.get()), w.metadata = metadata.get();
  for_each_instance(o, [&](const std::string& name, auto call) {
    SCOPED_TRACE(name);
    const OnGpu out(std::vector<std::byte>(static_cast<std::size_t>(o.c.m * o.c.rows * 2), std::byte{0xa5}));
    MatmulArgs args;
    args.dtype = o.dtype, args.m = o.c.m, args.device = 0, args.stream = stream.get();
    args.a = x.get(), args.a_stride = o.c.cols, args.values = values.get();
    args.out = out.get(), args.out_stride = o.c.rows;
    if (o.c.epilogue) {
      args.activation = Activation::relu, args.bias = bias.get();
      args.residual = residual.get(), args.residual_stride = o.c.rows;
    }
    ASSERT_EQ(call(cuda::TilesProduct{args, w}), cudaSuccess);
    stream.wait();
    const std::vector<std::byte> got = out.read();
    // All outputs of some tokens: the answer takes long.
    const std::int64_t step = o.c.m <= 70 ? 1 : 37;
    for (std::int64_t token = 0; token < o.c.m; token += step)
      for (std::int64_t row = 0; row < o.c.rows; ++row) {
        const double is = load(o.dtype, got.data(), token * o.c.rows + row), should = o.answer(token, row);
        if (is == should) continue;
        ADD_FAILURE() << "token " << token << ", output " << row << ": " << is << " for " << should;
        return;
      }
  });
}

TEST(CudaSmallTiles, EveryInstanceWritesTheAnswer) {
  if (runtime::cuda_device(0).sm != 90) GTEST_SKIP() << "needs compute capability 9.0";
  for (const TilesCase& each : {TilesCase{64, 256, 256, 64, .4, .5},
                                {33, 512, 512, 128, .4, .5, true},
                                {1, 192, 320, 64, .1, .2},
                                {200, 200, 328, 64, .3, .3, true},
                                {250, 320, 520, 128, .5, .3},
                                {17, 128, 64, 64, 0, .5},
                                {16, 256, 512, 64, .3, 0},
                                {5, 640, 256, 64, 0, 0, true}})
    for (const DType dtype : {DType::bf16, DType::f16}) expect_exact({dtype, each});
}

}  // namespace
}  // namespace sparseloom::testing
