// Which tiles a thread block multiplies, and its place in the ring.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/address.cuh"
#include "kernels/cuda/ptx/opaque.cuh"
#include "kernels/cuda/sm90/mma_dds_tile.cuh"

namespace sparseloom::kernels::cuda::mma_dds {

/// Thread block i takes tiles i, i + gridDim.x, ..: panels of tokens outside, groups of lines inside. A grid
/// of whole panels meets one group all along, whose table is then made once; of lines of unlike length, the
/// next group in every round.
class Tiles {
 public:
  explicit __device__ __forceinline__ Tiles(const Params& params) : tile_(blockIdx.x) { find(params); }

  __device__ __forceinline__ bool any(const Params& params) const { return tile_ < params.tiles; }
  __device__ __forceinline__ int group() const { return static_cast<int>(group_); }
  __device__ __forceinline__ int panel() const { return static_cast<int>(panel_); }
  __device__ __forceinline__ void advance(const Params& params) {
    tile_ += gridDim.x;
    find(params);
  }

 private:
  __device__ __forceinline__ void find(const Params& params) {
    panel_ = tile_ / params.groups;
    group_ = (tile_ + (params.turned ? panel_ * params.groups / gridDim.x : 0)) % params.groups;
  }

  unsigned tile_, panel_, group_;
};

/// A place in the ring; all warps pass the same stages in the same order. Addresses of shared memory.
template <class T>
class Turn {
 public:
  __device__ __forceinline__ Turn(const Params& params, const SharedFront<T>& front)
      : stage_bytes_(T::kXBytes + params.slots * T::kSlotBytes),
        bytes_(params.stages * stage_bytes_),
        stages_(params.stages * kBytes),
        stage_(ptx::shared_address(front.stage)) {
    // Not computed anew from parameters in every turn, which others would wait for.
    ptx::opaque(stage_bytes_), ptx::opaque(bytes_), ptx::opaque(stages_);
  }

  /// `by` stages on, at most as many as there are.
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
  __device__ __forceinline__ int offset() const { return offset_; }  // in the ring
  __device__ __forceinline__ unsigned parity() const {
    return parity_;
  }  // of the phase in which it is filled
  __device__ __forceinline__ int ring_bytes() const { return bytes_; }

 private:
  static constexpr int kBytes = sizeof(Stage<T>);
  int stage_bytes_, bytes_, stages_;
  std::uint32_t stage_;
  int offset_ = 0;
  unsigned parity_ = 0;
};

}  // namespace sparseloom::kernels::cuda::mma_dds
