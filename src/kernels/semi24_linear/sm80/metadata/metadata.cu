#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/semi24_linear/sm80/metadata/metadata.h"
#include "kernels/shared/early_launch.cuh"

namespace sparseloom::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct Params {
  const std::uint8_t* positions;
  std::uint32_t* words;
  std::int64_t rows, quads, row_bytes, tile_cols, count;  // quads: groups of four columns
};

/// The positions of the four groups of four from `quad` on.
__device__ __forceinline__ std::uint32_t positions_of(const Params& params, std::int64_t row,
                                                      std::int64_t quad) {
  std::uint32_t bits = 0;
  if (row >= params.rows) return 0x4444;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::int64_t at = quad + i;
    const std::uint32_t pair =
        at < params.quads ? params.positions[row * params.row_bytes + at / 2] >> (at % 2 * 4) & 15 : 4;
    bits |= pair << (i * 4);
  }
  return bits;
}

__global__ void __launch_bounds__(kThreads) order_metadata_kernel(const Params params) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < params.count; i += step) {
    const int word = i % 2, lane = i / 2 % 32, warp = i / 64 % 4;
    const std::int64_t tile = i / 256, row = tile / params.tile_cols * kMetadataRows + warp * 16 + lane / 4;
    const std::int64_t quad = tile % params.tile_cols * (kMetadataCols / 4) + word * 16 + lane % 4 * 4;
    params.words[i] = positions_of(params, row, quad) | positions_of(params, row + 8, quad) << 16;
  }
}

}  // namespace

int semi24_order_metadata(const std::uint8_t* positions, std::int64_t rows, std::int64_t cols,
                          std::byte* metadata, void* stream) noexcept {
  const std::int64_t quads = (cols + 3) / 4;
  const Params params{positions,
                      reinterpret_cast<std::uint32_t*>(metadata),
                      rows,
                      quads,
                      (quads + 1) / 2,
                      (cols + kMetadataCols - 1) / kMetadataCols,
                      semi24_metadata_bytes(rows, cols) / 4};
  if (params.count == 0) return cudaSuccess;
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>((params.count + kThreads - 1) / kThreads, 4096));
  return launch_kernel({.grid = blocks, .block = kThreads, .stream = static_cast<cudaStream_t>(stream)},
                       order_metadata_kernel, params);
}

}  // namespace sparseloom::kernels::cuda
