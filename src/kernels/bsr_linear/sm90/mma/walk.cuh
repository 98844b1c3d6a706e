// Iterators of sm90_mma: over the tiles of a thread block, and over the stages of the ring.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/mma/tile.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/opaque.cuh"

namespace sparseloom::kernels::cuda::sm90_mma {

/// Walks the tiles of a thread block: thread block i takes tiles i, i + gridDim.x, and so on. Tiles are
/// numbered with groups of block rows fastest, M tiles slowest. If the grid is a multiple of the groups, a
/// thread block visits one group only, whose table is then built once. Block rows of uneven length are
/// balanced by `rotated`, which then takes the next group in every wave.
class Tiles {
 public:
  explicit __device__ __forceinline__ Tiles(const Params& params) : tile_(blockIdx.x) { find(params); }

  __device__ __forceinline__ bool any(const Params& params) const { return tile_ < params.tiles; }
  __device__ __forceinline__ int group() const { return static_cast<int>(group_); }
  __device__ __forceinline__ int m_tile() const { return static_cast<int>(m_tile_); }
  __device__ __forceinline__ void advance(const Params& params) {
    tile_ += gridDim.x;
    find(params);
  }

 private:
  __device__ __forceinline__ void find(const Params& params) {
    m_tile_ = tile_ / params.groups;
    group_ = (tile_ + (params.rotated ? m_tile_ * params.groups / gridDim.x : 0)) % params.groups;
  }

  unsigned tile_, m_tile_, group_;
};

/// A position in the ring, like CUTLASS's PipelineState, with shared memory addresses. All warps visit the
/// same stages in the same order.
template <class T>
class Turn {
 public:
  __device__ __forceinline__ Turn(const Params& params, const SharedFront<T>& front)
      : stage_bytes_(T::kXBytes + params.slots * T::kSlotBytes),
        bytes_(params.stages * stage_bytes_),
        stages_(params.stages * kBytes),
        stage_(ptx::shared_address(front.stage)) {
    // Keep the compiler from computing these from the parameters again at every stage, which costs latency.
    ptx::opaque(stage_bytes_), ptx::opaque(bytes_), ptx::opaque(stages_);
  }

  /// Advances by `by` stages, at most the ring's number of stages.
  __device__ __forceinline__ void advance(int by = 1) {
    offset_ += by * stage_bytes_;
    stage_ += by * kBytes;
    if (offset_ >= bytes_) {
      offset_ -= bytes_;
      stage_ -= stages_;
      parity_ ^= 1;
    }
  }
  __device__ __forceinline__ std::uint32_t full() const { return stage_; }
  __device__ __forceinline__ std::uint32_t empty() const { return stage_ + offsetof(Stage<T>, empty); }
  __device__ __forceinline__ std::uint32_t record(int warp) const {
    return stage_ + offsetof(Stage<T>, record) + warp * 4;
  }
  __device__ __forceinline__ int offset() const { return offset_; }  // of the stage's data in the ring
  __device__ __forceinline__ unsigned parity() const {
    return parity_;
  }  // parity of the phase of `full` in which the stage is filled
  __device__ __forceinline__ int ring_bytes() const { return bytes_; }

 private:
  static constexpr int kBytes = sizeof(Stage<T>);
  int stage_bytes_, bytes_, stages_;
  std::uint32_t stage_;
  int offset_ = 0;
  unsigned parity_ = 0;
};

}  // namespace sparseloom::kernels::cuda::sm90_mma
