// Host side that both decode kernels share: their parameters.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/bsr_linear/sm80/decode/params.cuh"

namespace sparseloom::kernels::cuda::decode {

inline bool aligned(const void* pointer, std::int64_t stride_bytes, int to) {
  return reinterpret_cast<std::uintptr_t>(pointer) % to == 0 && stride_bytes % to == 0;
}

/// Sets all parameters but strips_shift and block_rows.
template <class Element>
Params<Element> params_of(const MatmulArgs& args) {
  const bool forward = args.direction == Direction::forward;
  const IndexView& index = args.index;
  Params<Element> params;
  params.first = forward ? index.crow : args.transposed.ccol;
  params.outer = forward ? index.col : args.transposed.row;
  params.slot = forward ? nullptr : args.transposed.slot;
  params.values = static_cast<const Element*>(args.values);
  params.a = static_cast<const Element*>(args.a);
  params.bias = static_cast<const Element*>(args.bias);
  params.residual = static_cast<const Element*>(args.residual);
  params.residual_stride = args.residual_stride;
  params.out = static_cast<Element*>(args.out);
  params.a_stride = args.a_stride;
  params.a_cols = forward ? index.cols : index.rows;
  params.out_stride = args.out_stride;
  params.out_cols = forward ? index.rows : index.cols;
  params.m = static_cast<int>(args.m);
  params.block_bytes = static_cast<unsigned>(index.block_elements() * sizeof(Element));
  params.row_bytes = static_cast<unsigned>(index.block.cols * sizeof(Element));
  params.k_shift = std::countr_zero(static_cast<unsigned>(forward ? index.block.cols : index.block.rows));
  params.whole_outer = static_cast<int>(params.a_cols >> params.k_shift);
  params.out_side = forward ? index.block.rows : index.block.cols;
  params.blocks = static_cast<std::int32_t>(index.blocks);
  params.activation = args.activation;
  params.values_aligned = aligned(args.values, 0, 16);
  params.a_aligned = aligned(args.a, args.a_stride * sizeof(Element), 16);
  params.out_pairs = aligned(args.out, args.out_stride * sizeof(Element), 2 * sizeof(Element));
  return params;
}

}  // namespace sparseloom::kernels::cuda::decode
