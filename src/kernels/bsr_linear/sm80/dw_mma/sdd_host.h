// Host side that both dW kernels of sm_80 (tensor cores and FFMA) share: workspace size and parameters.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/bsr_linear/sm80/dw_mma/instances.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda::sdd {

/// Size of the partial sums; none if the tokens are not cut.
inline std::size_t partial_bytes(const Problem& p, int pieces) {
  if (pieces == 1) return 0;
  return static_cast<std::size_t>(p.blocks) * p.block.rows * p.block.cols * pieces * sizeof(float);
}

/// Whether every row of a matrix consists of aligned 16-byte chunks.
inline bool in_chunks(const void* matrix, std::int64_t row_bytes) {
  return reinterpret_cast<std::uintptr_t>(matrix) % 16 == 0 && row_bytes % 16 == 0;
}

/// Parameters that both kernels take. Cut is mma_sdd::Cut or ffma::SddCut.
template <class Cut>
MmaSddParams params_of(const MatmulArgs& args, const Cut& cut) {
  const IndexView& index = args.index;
  const auto element_bytes = static_cast<std::int64_t>(size_of(args.dtype));
  MmaSddParams params;
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

/// Called after a launch that returned `status`: adds up the pieces, if there are several.
inline cudaError_t sum_up(cudaError_t status, const MmaSddParams& params, int pieces,
                          const MatmulArgs& args) {
  if (status != cudaSuccess || pieces == 1) return status;
  const auto stream = static_cast<cudaStream_t>(args.stream);
  return sum_pieces(params.partial, params.elements, pieces, args.dtype, args.accumulate, args.out, stream);
}

}  // namespace sparseloom::kernels::cuda::sdd
