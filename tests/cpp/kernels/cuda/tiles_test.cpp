// Forward of tiles on GPUs, on numbers whose sums are exact: every instance writes the bits of the answer.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/on_gpu.h"
#include "kernels/semi24_linear/sm80/metadata/metadata.h"
#include "kernels/tiles_case.h"
#include "kernels/tiles_linear/sm80/forward_mma/entry.h"
#include "kernels/tiles_linear/sm90/decode/entry.h"
#include "kernels/tiles_linear/sm90/forward_wgmma/entry.h"
#include "runtime/cuda.h"
#include "sparseloom/tiles_ops.h"

namespace sparseloom::testing {
namespace {

namespace cuda = kernels::cuda;

std::vector<std::byte> bytes_of(const std::vector<std::int32_t>& list) {
  std::vector<std::byte> bytes(list.size() * 4);
  if (!list.empty()) std::memcpy(bytes.data(), list.data(), bytes.size());
  return bytes;
}

/// Every instance that the device runs; `each`(name, the call).
template <class F>
void for_each_instance(const TilesOperands& o, F&& each) {
  for (int tile = 0; tile < cuda::tiles_mma::kTileCount; ++tile)
    each("mma tile " + std::to_string(tile),
         [tile](const cuda::TilesProduct& product) { return cuda::sm80_tiles_mma(product, tile); });
  if (runtime::cuda_device(0).sm != 90) return;
  for (int tile = 0; tile < cuda::tiles::kTileCount; ++tile)
    each("tile " + std::to_string(tile),
         [tile](const cuda::TilesProduct& product) { return cuda::sm90_tiles_wgmma(product, tile); });
  for (int tile = 0; tile < cuda::tiles::kDecodeTileCount; ++tile)
    for (int ranks = 1; ranks <= cuda::tiles::kMostRanks && ranks <= o.w.units(); ranks *= 2)
      each("decode tile " + std::to_string(tile) + " of " + std::to_string(ranks),
           [tile, ranks](const cuda::TilesProduct& product) {
             return cuda::sm90_tiles_decode(product, tile, ranks);
           });
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
  // All outputs of some tokens: the answer takes long.
  const std::int64_t step = o.c.m <= 70 ? 1 : 37;
  const std::vector<double> answers = o.answers(step);
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
    for (std::int64_t token = 0; token < o.c.m; token += step)
      for (std::int64_t row = 0; row < o.c.rows; ++row) {
        const double is = load(o.dtype, got.data(), token * o.c.rows + row),
                     should = answers[static_cast<std::size_t>(token / step * o.c.rows + row)];
        if (is == should) continue;
        ADD_FAILURE() << "token " << token << ", output " << row << ": " << is << " for " << should;
        return;
      }
  });
}

TEST(CudaSmallTiles, EveryInstanceWritesTheAnswer) {
  if (runtime::cuda_device(0).sm < 80) GTEST_SKIP() << "needs compute capability 8.0";
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
