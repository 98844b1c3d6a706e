// Host code of both methods: fills the kernel parameters.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/args.h"
#include "kernels/bsr_linear/sm90/decode_lines/entry.h"
#include "kernels/bsr_linear/sm90/decode_lines/params.cuh"

namespace sparseloom::kernels::cuda::decode_lines {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

inline bool multiple_of(const void* pointer, std::int64_t stride, int bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0 && stride * 2 % bytes == 0;
}

/// Fills the parameters that do not depend on the kernel. Returns false for what the row refuses: a count
/// that does not fit 32 bits, or a misaligned operand.
inline bool fill(Params& params, const MatmulArgs& args) {
  const IndexView& index = args.index;
  const std::int64_t block_rows = index.block_rows(), strips = std::max(index.block.rows / kStrip, 1);
  if (!multiple_of(args.a, args.a_stride, 16) || !multiple_of(args.values, 0, 16) || index.blocks == 0)
    return false;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / 2;
  if (!counts_fit(index.rows, index.cols, index.block, index.blocks) ||
      (args.m - 1) * args.a_stride + index.cols > kMost)
    return false;
  params.values = args.values;
  params.crow = index.crow;
  params.col = index.col;
  params.x = args.a;
  params.bias = args.bias;
  params.residual = args.residual;
  params.residual_stride = args.residual_stride;
  params.out = args.out;
  params.x_stride = args.a_stride;
  params.out_stride = args.out_stride;
  params.rows = static_cast<std::int32_t>(index.rows);
  params.cols = static_cast<std::int32_t>(index.cols);
  params.block_rows = static_cast<std::int32_t>(block_rows);
  params.blocks = static_cast<std::int32_t>(index.blocks);
  params.strips_log2 = std::countr_zero(static_cast<unsigned>(strips));
  params.bn_log2 = std::countr_zero(static_cast<unsigned>(index.block.cols));
  params.m = static_cast<int>(args.m);
  params.activation = args.activation;
  params.out_fours = multiple_of(args.out, args.out_stride, 8);
  return true;
}

}  // namespace sparseloom::kernels::cuda::decode_lines
