// Host code that the kernels of sm90_decode share: kernel parameters and clusters.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/args.h"
#include "kernels/bsr_linear/sm90/decode/config.cuh"
#include "kernels/bsr_linear/sm90/operands/tensor_map.h"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/probes/cluster_counts.h"

namespace sparseloom::kernels::cuda::decode90 {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// log2 of the thread blocks of a cluster; 4, of which no cluster runs, if the schedule has no such size.
inline unsigned cluster_log2(const Schedule& schedule) {
  const auto size = static_cast<unsigned>(schedule.cluster);
  return std::has_single_bit(size) && size <= 8 ? static_cast<unsigned>(std::countr_zero(size)) : 4;
}

/// Clusters of 2^log2 thread blocks that run at once; 0: such clusters do not run.
inline int clusters_at_once(int device, unsigned log2) { return log2 < 4 ? cluster_counts(device)[log2] : 0; }

inline bool multiple_of(const void* pointer, std::int64_t stride, int bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0 && stride * 2 % bytes == 0;
}

/// Fills what does not depend on the kernel. Returns false for what the rows refuse: a count that does not
/// fit 32 bits, an operand that is not aligned.
inline bool fill(Params& params, const MatmulArgs& args) {
  const IndexView& index = args.index;
  const std::int64_t block_rows = index.block_rows(), strips = std::max(index.block.rows / kStrip, 1);
  if (!multiple_of(args.a, args.a_stride, 16) || !multiple_of(args.values, 0, 16) || index.blocks == 0)
    return false;
  // The kernels that read X without TMA take at most 64 tokens, of which is_aligned bounds the bytes.
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / 2;
  if (!counts_fit(index.rows, index.cols, index.block, index.blocks) ||
      (args.m <= kDecodeTokens && (args.m - 1) * args.a_stride + index.cols > kMost))
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
  params.fours_log2 = static_cast<int>(std::bit_width(static_cast<unsigned>((args.m + 3) / 4 - 1)));
  params.activation = args.activation;
  params.out_fours = multiple_of(args.out, args.out_stride, 8);
  return true;
}

/// Makes the tensor map of W for wide blocks.
inline bool encode_values(CUtensorMap& map, const MatmulArgs& args) {
  const BlockShape block = args.index.block;
  return encode_tensor_map(
      map, {args.values, args.dtype, args.index.blocks * block.rows, block.cols, block.cols * 2},
      {kStrip, 64, 128});
}

/// Sets the number of clusters of 2^log2 thread blocks with `warps` warps each, and what the kernels derive
/// from it.
inline void set_clusters(Params& params, const MatmulArgs& args, unsigned clusters, unsigned log2,
                         int warps) {
  const std::int64_t bytes = args.index.blocks * args.index.block_elements() * 2;
  params.cluster_log2 = static_cast<int>(log2);
  params.share_step = static_cast<unsigned>(((std::uint64_t{1} << 32) + clusters - 1) /
                                            clusters);  // with one cluster it overflows to 0 and is not used
  const std::int64_t all_warps = std::int64_t{clusters} * warps << log2;
  params.warp_bytes = bytes / all_warps / 16 * 16;
  params.warp_blocks = ceil_div(args.index.blocks, all_warps);
}

}  // namespace sparseloom::kernels::cuda::decode90
