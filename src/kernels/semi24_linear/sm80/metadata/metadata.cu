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

/// The positions of kGroups groups of four from `quad` on, four bits each.
template <int kGroups>
__device__ __forceinline__ std::uint32_t positions_of(const Params& params, std::int64_t row,
                                                      std::int64_t quad) {
  constexpr std::uint32_t kBeyond = 4;
  std::uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const std::int64_t at = quad + i;
    const std::uint32_t pair = row < params.rows && at < params.quads
                                   ? params.positions[row * params.row_bytes + at / 2] >> (at % 2 * 4) & 15
                                   : kBeyond;
    bits |= pair << (i * 4);
  }
  return bits;
}

/// kWords: words per lane and tile.
template <int kWords>
__global__ void __launch_bounds__(kThreads) order_metadata_kernel(const Params params) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < params.count; i += step) {
    const int word = i % kWords, lane = i / kWords % 32, warp = i / (kWords * 32) % 4;
    const std::int64_t tile = i / (kWords * 128),
                       row = tile / params.tile_cols * kMetadataRows + warp * 16 + lane / 4;
    const std::int64_t quad = (tile % params.tile_cols * kWords + word) * 16;
    if constexpr (kWords <= 2)
      params.words[i] = positions_of<4>(params, row, quad + lane % 4 * 4) |
                        positions_of<4>(params, row + 8, quad + lane % 4 * 4) << 16;
    else
      params.words[i] = positions_of<8>(params, row + lane % 2 * 8, quad + lane / 2 % 2 * 8);
  }
}

/// bytes: of all metadata.
int order(const std::uint8_t* positions, std::int64_t rows, std::int64_t cols, std::int64_t tile_cols,
          std::int64_t bytes, void (*kernel)(Params), std::byte* metadata, void* stream) noexcept {
  const std::int64_t quads = (cols + 3) / 4;
  const Params params{positions,       reinterpret_cast<std::uint32_t*>(metadata), rows,     quads,
                      (quads + 1) / 2, (cols + tile_cols - 1) / tile_cols,         bytes / 4};
  if (params.count == 0) return cudaSuccess;
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>((params.count + kThreads - 1) / kThreads, 4096));
  return launch_kernel({.grid = blocks, .block = kThreads, .stream = static_cast<cudaStream_t>(stream)},
                       kernel, params);
}

}  // namespace

int semi24_order_metadata(const std::uint8_t* positions, std::int64_t rows, std::int64_t cols, DType dtype,
                          std::byte* metadata, void* stream) noexcept {
  return order(positions, rows, cols, kMetadataCols * semi24_metadata_width(dtype),
               semi24_metadata_bytes(rows, cols, dtype),
               size_of(dtype) == 1 ? order_metadata_kernel<4> : order_metadata_kernel<2>, metadata, stream);
}

int semi24_order_units(const std::uint8_t* positions, std::int64_t rows, std::int64_t cols,
                       std::byte* metadata, void* stream) noexcept {
  return order(positions, rows, cols, 64, rows / 64 * (cols / 64) * kMetadataUnitBytes,
               order_metadata_kernel<1>, metadata, stream);
}

}  // namespace sparseloom::kernels::cuda
