// The order in which a thread block computes its tiles.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/semi24_linear/sm90/forward_wgmma/tile.cuh"

namespace sparseloom::kernels::cuda::semi24 {

/// Thread block i takes tiles i, i + gridDim.x, and so on. Tiles of rows are the inner loop, so that the GPU
/// works on few tokens at a time and L2 serves them; if W is larger than L2, all tokens pass over a chunk of
/// its rows before the next chunk begins.
template <class T>
class Tiles {
 public:
  explicit __device__ __forceinline__ Tiles(const Params& params) : tile_(blockIdx.x) { find(params); }
  __device__ __forceinline__ bool any(const Params& params) const { return tile_ < params.tiles; }
  __device__ __forceinline__ void advance(const Params& params) {
    tile_ += gridDim.x;
    find(params);
  }
  /// The tile's first row of W and first token.
  __device__ __forceinline__ std::int32_t row() const { return static_cast<std::int32_t>(row_ * T::kRows); }
  __device__ __forceinline__ std::int32_t token() const {
    return static_cast<std::int32_t>(column_ * T::kTokens);
  }

 private:
  __device__ __forceinline__ void find(const Params& params) {
    const unsigned chunk = tile_ / (params.token_tiles * params.chunk), first = chunk * params.chunk;
    const unsigned width = min(params.chunk, params.row_tiles - first),
                   within = tile_ - first * params.token_tiles;
    column_ = within / width;
    row_ = first + within % width;
  }

  unsigned tile_, column_, row_;
};

}  // namespace sparseloom::kernels::cuda::semi24
