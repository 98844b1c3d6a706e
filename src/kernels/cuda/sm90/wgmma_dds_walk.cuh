// Which tiles a thread block multiplies, in which order, and where they lie in the matrix.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/sm90/wgmma_dds_tile.cuh"

namespace sparseloom::kernels::cuda::wgmma_dds {

/// First token and output of a tile, outputs counted in the order of params.order.
struct Place {
  std::int32_t token, output;
};

/// Where an output of a tile lies in the matrix.
__device__ __forceinline__ std::int32_t in_matrix(const Params& params, std::int32_t output) {
  const std::int32_t line = output >> params.line_log2;
  if (!params.ordered || line >= params.lines) return output;
  return (params.order[line] << params.line_log2) + (output & ((1 << params.line_log2) - 1));
}

/// Box number n of a tile's outputs, in the order in which a warp stores them.
template <class T>
struct OutBox {
  static constexpr int kCount = T::kOutputs / T::kStoreColumns * T::kTokenBlocks;
  std::int32_t column, row;
  __device__ __forceinline__ OutBox(const Params& params, const Place& place, int first_row, int n)
      : column(in_matrix(params, place.output + n / T::kTokenBlocks * T::kStoreColumns)),
        row(place.token + first_row + n % T::kTokenBlocks * 64) {}
};

/// Thread block i takes tiles i, i + gridDim.x, ..: panels of tokens outside, groups of outputs inside, so
/// that the chip works on few panels of x at a time and L2 serves them. Each panel begins with another group:
/// as many thread blocks as whole panels have groups keep step, but would else meet the same groups in every
/// round, however costly. Where the values are larger than L2, `chunk` groups see all panels before the next
/// chunk does.
///
/// Neighbours in a panel are to be neighbours in the grid: those that read the same slabs then lie in
/// different clusters of multiprocessors. Dealt out in steps of 4 to 32 instead, blocks of 64 took 3 to 14 %
/// longer.
class Tiles {
 public:
  explicit __device__ __forceinline__ Tiles(const Params& params) : tile_(blockIdx.x) { find(params); }

  __device__ __forceinline__ bool any(const Params& params) const { return tile_ < params.tiles; }

  template <class T>
  __device__ __forceinline__ Place place() const {
    return {static_cast<std::int32_t>(panel_ * T::kTokens), static_cast<std::int32_t>(group_ * T::kOutputs)};
  }

  /// To the next, by additions where there is one chunk: what three divisions take, the first copies and
  /// products would wait for.
  __device__ __forceinline__ void advance(const Params& params) {
    tile_ += gridDim.x;
    if (params.chunk < params.groups) {
      find(params);
      return;
    }
    panel_ += params.grid_panels;
    index_ += params.grid_rest;
    turn_ = less(turn_ + params.grid_turn, params.groups);
    if (index_ >= params.groups) {
      index_ -= params.groups;
      ++panel_;
      turn_ = less(turn_ + params.stride, params.groups);
    }
    group_ = less(index_ + turn_, params.groups);
  }

 private:
  /// number of below twice the groups, modulo these.
  static __device__ __forceinline__ unsigned less(unsigned number, unsigned groups) {
    return number >= groups ? number - groups : number;
  }

  __device__ __forceinline__ void find(const Params& params) {
    const unsigned chunk = tile_ / (params.panels * params.chunk), first = chunk * params.chunk;
    const unsigned width = min(params.chunk, params.groups - first), within = tile_ - first * params.panels;
    panel_ = within / width;
    index_ = within % width;
    turn_ = panel_ * params.stride % width;
    group_ = first + less(index_ + turn_, width);
  }

  unsigned tile_, panel_, group_;
  unsigned index_, turn_;  // group_ is their sum, modulo the groups
};

}  // namespace sparseloom::kernels::cuda::wgmma_dds
