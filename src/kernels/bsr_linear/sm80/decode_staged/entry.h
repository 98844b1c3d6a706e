// The entry of decode_staged, the instances of kernel.cuh, one translation unit each so that they compile in
// parallel, and the division of the work by row.cpp. cuda/rows.h has the contract of entries.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/args.h"
#include "sparseloom/schedule.h"

namespace sparseloom::kernels::cuda {

/// sm80_decode for many narrow blocks: forward of bf16 and f16 with block sides of at most kStagedBlock. X
/// goes through shared memory. Values are aligned to 16 bytes, and 32 bits count the columns.
inline constexpr int kStagedBlock = 16;
inline constexpr std::int64_t kStagedColumns = std::numeric_limits<std::int32_t>::max() - 128;
int sm80_decode_staged(const MatmulArgs& args, const Schedule& schedule) noexcept;

namespace decode::staged {

/// For forward, blocks of 8 and 16, and values aligned to 16 bytes.
int launch_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int launch_f16(const MatmulArgs& args, const Schedule& schedule) noexcept;

}  // namespace decode::staged

}  // namespace sparseloom::kernels::cuda

namespace sparseloom::kernels::cuda::decode::staged {

/// A multiple of every block side: ranges and chunks of k are multiples of it.
inline constexpr std::int64_t kRangeAlign = 128;
inline constexpr int kTileOutputs = 8;  // the N of an mma; a strip has one or two
inline constexpr int kTileTokens = 16;  // the M of an mma

/// The register limit: 80 per lane for 24 warps, 128 for 16.
constexpr int most_warps(int tiles, int token_tiles) { return tiles * token_tiles <= 4 ? 24 : 16; }
/// Groups of a step, which a warp loads ahead; `words`: a lane's words of W per group.
constexpr int step_groups(int words) { return words == 1 ? 4 : 2; }
/// float4 per warp of partial sums.
constexpr int vectors(int tiles, int token_tiles) { return token_tiles * tiles * 32; }

/// The division of one product by a launch. Counts of k are in groups: the k of a block's row.
struct Tiling {
  int strips = 0;            // of all block rows together
  int block_strips = 0;      // strips of one thread block
  int strip_warps = 0;       // warps that share a strip's blocks
  int split = 0;             // thread blocks of a cluster; each sums its own range of k
  int range = 0;             // length of a range; multiple of 128 k
  int k_groups = 0;          // of a, rounded up to 128 k
  int chunk = 0;             // k in shared memory at a time; multiple of 128 k
  unsigned chunk_bytes = 0;  // of a chunk in shared memory
};

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

/// The tiling that a schedule names: tile m x n is the tokens and a strip's outputs, tile k is a chunk, and
/// the cluster is the split. `group`: the k of a group; `strips`: of all block rows together.
inline Tiling tiling_of(const Schedule& schedule, std::int64_t strips, std::int64_t cols, int group) {
  const std::int64_t k = round_up(cols, kRangeAlign), split = std::max(schedule.cluster, 1);
  Tiling tiling;
  tiling.strips = static_cast<int>(strips);
  tiling.block_strips = schedule.tiles_at_once, tiling.strip_warps = schedule.warps;
  tiling.split = static_cast<int>(split);
  tiling.range = static_cast<int>(round_up(ceil_div(k, split), kRangeAlign) / group);
  tiling.k_groups = static_cast<int>(k / group);
  tiling.chunk = schedule.tile_k / group;
  tiling.chunk_bytes = static_cast<unsigned>(schedule.tile_k) * static_cast<unsigned>(schedule.tile_m) * 2;
  return tiling;
}

/// Dynamic shared memory of a launch: one or two chunks of X, which the partial sums overwrite.
inline std::size_t shared_bytes_of(const Tiling& tiling, int partial_vectors) {
  const std::size_t resident = tiling.range > tiling.chunk ? 2 : 1;
  const auto warps = static_cast<std::size_t>(tiling.block_strips * tiling.strip_warps);
  return std::max(resident * tiling.chunk_bytes, warps * static_cast<std::size_t>(partial_vectors) * 16);
}

}  // namespace sparseloom::kernels::cuda::decode::staged
