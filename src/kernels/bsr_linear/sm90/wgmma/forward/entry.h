// The entries of wgmma/forward, the instances of kernel.cuh, their tiles, and the walk over a product's
// tiles. Each instance is a translation unit of its own, so that two cores can compile them side by side.
// cuda/rows.h has the contract of entries.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/args.h"

namespace sparseloom::kernels::cuda {

/// Forward and dX by Hopper's wgmma and TMA (compute capability 9.0 only): bf16, f16 and f32 with args.tf32
/// in block sides 32, 64, 128 in any pairing; forward of f8e4m3 in sides 64 and 128; any m >= 1.
/// Operands are aligned, some block is stored, and f32 comes without a residual. A glu is of bf16 or f16, in
/// block rows of 32, or of 64 with wide tiles, and both of its weights store blocks. The workspace serves dX
/// of f32, which transposes the values. The rows choose the schedule by row_parts.h.
int sm90_wgmma_forward(const MatmulArgs& args, const Schedule& schedule) noexcept;

/// The product of bf16 and f16 blocks with a side below 32. It first merges them into units of 32 on that
/// side, padded with zeros (merged/merge_blocks.h), so x is multiplied under those zeros too. The workspace
/// holds the units and may be as large as the dense W.
int sm90_wgmma_merged(const MatmulArgs& args, const Schedule& schedule) noexcept;

namespace wgmma::forward {

/// Bytes of the stored values and of the dense operand, and the capacity of L2.
struct WalkBytes {
  std::int64_t values = 0, dense = 0, l2 = 0;
};

/// The number of output groups in a chunk. All M tiles pass over one chunk before the next chunk begins;
/// `places` tiles run at a time. All groups form one chunk if the values fit in half of L2 (the rest is for
/// the M tiles in progress and the outputs), or if rereading the dense operand for every chunk costs more
/// than rereading the values for every wave of `places` tiles. Otherwise a chunk fills a third of L2, which
/// measured faster than halves and quarters of L2 (the log has the figures).
inline unsigned chunk_of(unsigned m_tiles, unsigned groups, unsigned places, const WalkBytes& bytes) {
  const std::int64_t l2 = std::max(bytes.l2, std::int64_t{16} << 20);
  if (bytes.values <= l2 / 2) return groups;
  const std::int64_t chunks = std::min<std::int64_t>((3 * bytes.values + l2 - 1) / l2, groups);
  const std::int64_t rounds = (std::int64_t{m_tiles} * groups + places - 1) / places;
  if ((chunks - 1) * bytes.dense >= (rounds - 1) * bytes.values) return groups;
  return static_cast<unsigned>((groups + chunks - 1) / chunks);
}

/// How the thread blocks, one to an SM, walk over m_tiles x groups tiles (walk.cuh). Tiles are
/// counted M tile by M tile, and M tile p begins with group p * stride. Thread block i takes tiles i, i +
/// grid, and so on.
struct Walk {
  unsigned grid = 0, stride = 1;
  /// With a single chunk, a thread block visits every step-th group and no other. With step 1 it visits all
  /// groups, almost equally often.
  unsigned step = 1;
};

/// The grid has only as many thread blocks as the number of waves needs: 128 for 1024 tiles on 132 SMs.
/// Thread blocks of whole M tiles then stay in step, which measured faster, most of all in dx of few blocks
/// (the log has the figures).
inline Walk walk_over(unsigned m_tiles, unsigned groups, unsigned multiprocessors) {
  const unsigned tiles = m_tiles * groups, rounds = (tiles + multiprocessors - 1) / multiprocessors;
  Walk walk;
  walk.grid = (tiles + rounds - 1) / rounds;
  walk.stride = std::max(1u, groups / m_tiles);
  const unsigned step = walk.grid / groups * walk.stride;
  if (walk.grid % groups == 0 && step > 0 && groups % step == 0) walk.step = step;
  return walk;
}

struct TileShape {
  int tokens, outputs;
  int per_multiprocessor = 1;  // thread blocks that share an SM
  int value_bytes = 0;         // bytes of a value as the kernel reads it; 0: its dtype's size
};
/// Wide tiles run one thread block per SM; narrow tiles have a quarter of the outputs and run two. Which size
/// is faster depends on the number of tiles, so both are candidates of a plan.
inline constexpr TileShape kWideTile{256, 128}, kNarrowTile{128, 64, 2};
// For bf16x3: a stored fp32 value is read as three bf16.
inline constexpr TileShape kBf16x3Tile{128, 128, 1, 3 * 2}, kNarrowBf16x3Tile{128, 64, 1, 3 * 2};

int forward_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int forward_f16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int forward_plus_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;  // with a residual
int forward_plus_f16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int forward_glu_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;  // with args.glu
int forward_glu_f16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int forward_tf32(const MatmulArgs& args, const Schedule& schedule) noexcept;
int forward_e4m3_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int forward_e4m3_f32(const MatmulArgs& args, const Schedule& schedule) noexcept;
int forward_e4m3_fast_bf16(const MatmulArgs& args,
                           const Schedule& schedule) noexcept;  // with args.fast_accum
int forward_e4m3_fast_f32(const MatmulArgs& args, const Schedule& schedule) noexcept;
int dx_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int dx_f16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int dx_tf32(const MatmulArgs& args, const Schedule& schedule) noexcept;

}  // namespace wgmma::forward
}  // namespace sparseloom::kernels::cuda
