// Host side that both dW kernels of sm_80 (tensor cores and FFMA) share: the segments of the tokens, called
// pieces, and the parameters.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/bsr_linear/sm80/mma/dw/instances.h"

namespace sparseloom::kernels::cuda::dw_pieces {

/// A schedule's division of a product: the blocks of a work item, and the segments of the tokens.
struct Pieces {
  int log2_group;  // log2(blocks of a work item)
  std::int64_t piece_tokens;
  int pieces;
};

/// Whether a schedule has this tile (of an instance) and a valid number of segments.
inline bool names_instance(const Schedule& schedule, int tile_m, int tile_n, int tile_k) {
  return schedule.method == Method::only && schedule.tile_m == tile_m && schedule.tile_n == tile_n &&
         schedule.tile_k == tile_k && schedule.split_k >= 1;
}

/// split_k segments of equally many steps of tile_k tokens; the last may have fewer. Without tokens: one
/// segment, which writes zeros. `pieces` is 0 if the schedule asks for more segments than there are steps.
inline Pieces pieces_of(const MatmulArgs& args, const Schedule& schedule) {
  const std::int64_t steps = std::max<std::int64_t>(1, (args.m + schedule.tile_k - 1) / schedule.tile_k),
                     each = (steps + schedule.split_k - 1) / schedule.split_k;
  const bool none_empty = (steps + each - 1) / each == schedule.split_k;
  return {std::countr_zero(static_cast<unsigned>(schedule.tile_n / args.index.block.cols)),
          each * schedule.tile_k, none_empty ? schedule.split_k : 0};
}

/// Whether every row of a matrix consists of aligned 16-byte chunks.
inline bool in_chunks(const void* matrix, std::int64_t row_bytes) {
  return reinterpret_cast<std::uintptr_t>(matrix) % 16 == 0 && row_bytes % 16 == 0;
}

/// Parameters that both kernels take.
inline MmaDwParams params_of(const MatmulArgs& args, const Pieces& cut) {
  const IndexView& index = args.index;
  const auto element_bytes = static_cast<std::int64_t>(size_of(args.dtype));
  MmaDwParams params;
  params.dy = args.a;
  params.x = args.b;
  params.dy_stride = args.a_stride;
  params.x_stride = args.b_stride;
  params.m = args.m;
  params.rows = index.rows;
  params.cols = index.cols;
  params.crow = index.crow;
  params.col = index.col;
  params.block_rows = index.block_rows();
  params.log2_bn = std::countr_zero(static_cast<unsigned>(index.block.cols));
  params.log2_group = cut.log2_group;
  params.piece_tokens = cut.piece_tokens;
  params.out = args.out;
  params.accumulate = args.accumulate;
  params.partial = cut.pieces == 1 ? nullptr : reinterpret_cast<float*>(args.workspace);
  params.elements = index.blocks * index.block_elements();
  params.dy_chunks = in_chunks(args.a, args.a_stride * element_bytes);
  params.x_chunks = in_chunks(args.b, args.b_stride * element_bytes);
  return params;
}

/// Called after a launch that returned `status`: adds up the segments, if there are several.
inline cudaError_t sum_up(cudaError_t status, const MmaDwParams& params, int pieces, const MatmulArgs& args) {
  if (status != cudaSuccess || pieces == 1) return status;
  const auto stream = static_cast<cudaStream_t>(args.stream);
  return sum_pieces(params.partial, params.elements, pieces, args.dtype, args.accumulate, args.out, stream);
}

}  // namespace sparseloom::kernels::cuda::dw_pieces
