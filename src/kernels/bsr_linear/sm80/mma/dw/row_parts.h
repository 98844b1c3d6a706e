// The dW schedule of the row sm80_mma (../forward/row.cpp).
#pragma once

#include <cstddef>

#include "kernels/bsr_linear/sm80/mma/dw/cut.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda {
namespace mma::dw {

inline Size size_of_product(const Problem& p) {
  return {p.m, (p.rows + p.block.rows - 1) / p.block.rows, p.blocks, p.block,
          static_cast<int>(size_of(p.dtype))};
}

}  // namespace mma::dw

namespace dw_pieces {

/// Bytes of the partial sums of split-K, for both dW kernels of sm_80; 0 if the tokens are not cut.
inline std::size_t partial_bytes(const Problem& p, const Schedule& schedule) {
  if (schedule.split_k <= 1) return 0;
  return static_cast<std::size_t>(p.blocks) * p.block.rows * p.block.cols * schedule.split_k * sizeof(float);
}

}  // namespace dw_pieces

/// The tile, and split-K. Empty if no block is stored: nothing is launched then.
inline Schedule sm80_mma_dw_schedule(const Problem& p, int multiprocessors) {
  Schedule schedule;
  if (p.blocks == 0) return schedule;
  schedule.tile_m = p.block.rows;
  schedule.tile_n = mma_dw_columns(p.block.rows);
  schedule.tile_k = mma_dw_tokens(static_cast<int>(size_of(p.dtype)));
  schedule.split_k = mma::dw::cut_tokens(mma::dw::size_of_product(p), multiprocessors).pieces;
  return schedule;
}

}  // namespace sparseloom::kernels::cuda
