// The order in which a thread block computes its tiles, and their positions in the matrix.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/forward/tile.cuh"

namespace sparseloom::kernels::cuda::wgmma::forward {

/// First token and first output of a tile; outputs are counted in the order of params.order.
struct Place {
  std::int32_t token, output;
};

/// The matrix column of an output that is counted as in Place. With kGlu, where block rows of the two weights
/// take turns, both of a pair have the same columns.
template <class T>
__device__ __forceinline__ std::int32_t in_matrix(const Params& params, std::int32_t output) {
  const std::int32_t block_row = output >> params.block_row_log2;
  if constexpr (T::kGlu)
    return (block_row / 2 << params.block_row_log2) + (output & ((1 << params.block_row_log2) - 1));
  if (!params.ordered || block_row >= params.block_rows) return output;
  return (params.order[block_row] << params.block_row_log2) + (output & ((1 << params.block_row_log2) - 1));
}

/// Box n of a tile's outputs, in the order in which a warp stores the boxes.
template <class T>
struct OutBox {
  static constexpr int kCount = T::kOutputs / T::kStoreColumns * T::kTokenBlocks;
  std::int32_t column, row;
  __device__ __forceinline__ OutBox(const Params& params, const Place& place, int first_row, int n)
      : column(in_matrix<T>(params, place.output + n / T::kTokenBlocks * T::kStoreColumns)),
        row(place.token + first_row + n % T::kTokenBlocks * 64) {}
};

/// Thread block i takes tiles i, i + gridDim.x, and so on. M tiles are the outer loop and groups of outputs
/// the inner one, so that the GPU works on few M tiles of x at a time and L2 serves them. Each M tile begins
/// with another group: if the grid is a whole number of M tiles, its thread blocks keep step, and each would
/// otherwise compute the same groups in every wave, however costly they are. If the values are larger than
/// L2, all M tiles pass over `chunk` groups before the next chunk begins.
///
/// Neighbours in an M tile should be neighbours in the grid: tiles that read the same K tiles are then in
/// different clusters of SMs. Distributing tiles in steps of 4 to 32 instead measured slower in blocks of 64.
class Tiles {
 public:
  explicit __device__ __forceinline__ Tiles(const Params& params) : tile_(blockIdx.x) { find(params); }

  __device__ __forceinline__ bool any(const Params& params) const { return tile_ < params.tiles; }

  template <class T>
  __device__ __forceinline__ Place place() const {
    return {static_cast<std::int32_t>(m_tile_ * T::kTokens), static_cast<std::int32_t>(group_ * T::kOutputs)};
  }

  /// Advances to the next tile. With a single chunk additions suffice; the tile's first copies and products
  /// would wait for the three divisions of find().
  __device__ __forceinline__ void advance(const Params& params) {
    tile_ += gridDim.x;
    if (params.chunk < params.groups) {
      find(params);
      return;
    }
    m_tile_ += params.grid_m_tiles;
    index_ += params.grid_rest;
    turn_ = less(turn_ + params.grid_turn, params.groups);
    if (index_ >= params.groups) {
      index_ -= params.groups;
      ++m_tile_;
      turn_ = less(turn_ + params.stride, params.groups);
    }
    group_ = less(index_ + turn_, params.groups);
  }

 private:
  /// `number`, which is below twice the groups, modulo the groups.
  static __device__ __forceinline__ unsigned less(unsigned number, unsigned groups) {
    return number >= groups ? number - groups : number;
  }

  /// Finds the position of tile_ by division.
  __device__ __forceinline__ void find(const Params& params) {
    const unsigned chunk = tile_ / (params.m_tiles * params.chunk), first = chunk * params.chunk;
    const unsigned width = min(params.chunk, params.groups - first), within = tile_ - first * params.m_tiles;
    m_tile_ = within / width;
    index_ = within % width;
    turn_ = m_tile_ * params.stride % width;
    group_ = first + less(index_ + turn_, width);
  }

  unsigned tile_, m_tile_, group_;
  unsigned index_, turn_;  // their sum, modulo the groups, is group_
};

}  // namespace sparseloom::kernels::cuda::wgmma::forward
