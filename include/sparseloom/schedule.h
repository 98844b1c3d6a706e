// Schedule: everything that a row chose for a product of a linear layer, before the launch.
//
// One struct serves every row, in CUTLASS's words: a row sets its choices and leaves the rest at 0, "as the
// kernel has it". So one function prints the schedule of any plan, and two kernels can be compared member by
// member. Rejected: bytes that each row reads as a struct of its own. Each row would need a cast and a
// printer, and the same choice would have a name in each.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "sparseloom/export.h"

namespace sparseloom {

/// How a kernel reads the dense operand. It multiplies a group of `block_rows` block rows (dx: block columns)
/// at a time. Along the reduction it reads the operand in units of `span` blocks, and only the units in which
/// any block row of the group stores a block.
struct BlockRowGroups {
  // block_rows = 0: the order must not change.
  int block_rows = 1, span = 1;
  // Groups i, i + step, .. are multiplied one after the other, for each i < step; these sequences run
  // concurrently.
  int step = 1;
  // Consecutive block rows of W that form one block row of the kernel and of the order (merged blocks).
  int fold = 1;
  friend auto operator<=>(const BlockRowGroups&, const BlockRowGroups&) = default;
};

/// Which of several kernels a row runs, by the name of its folder in src/kernels/bsr_linear.
enum class Method : std::uint8_t { only, dw_wgmma, dw_wgmma_regions, decode_rows, decode_x_streamed };

/// Trivially copyable and without pointers: a plan keeps it, and every launch of the plan gets it.
struct Schedule {
  /// Which block rows are multiplied together.
  BlockRowGroups groups{0};
  Method method = Method::only;
  /// The tile of a thread block, m x n outputs and k of the reduction at a time: tokens x outputs x inputs in
  /// forward, tokens x inputs x outputs in dx, outputs x inputs x tokens in dw.
  std::int32_t tile_m = 0, tile_n = 0, tile_k = 0;
  /// Equal segments of the reduction, whose sums are added up in a pass of their own.
  std::int32_t split_k = 0;
  /// Thread blocks of a cluster, which share a tile and add up its sums.
  std::int32_t cluster = 0;
  /// Thread blocks of the launch; each computes tiles in turn. 0: one per tile, or as many as run at one
  /// time.
  std::int32_t grid = 0;
  /// N tiles that all M tiles pass over before the next ones begin; 0: all.
  std::int32_t chunk_n = 0;
  /// M tile p begins with N tile p * stride_n; 0: each M tile begins with the first.
  std::int32_t stride_n = 0;
  /// Tiles that a thread block computes one after the other.
  std::int32_t tiles_in_turn = 0;
  /// Tiles that a thread block computes at once, each by warps of its own.
  std::int32_t tiles_at_once = 0;
  /// Warps of a thread block, or of each of its tiles at once.
  std::int32_t warps = 0;
  /// K tiles that a thread block has under way between global and shared memory.
  std::int32_t stages = 0;
  /// Stored blocks that a stage has room for.
  std::int32_t slots = 0;
  /// Computes the transposed product: the tensor cores' M is that of the outputs, their N that of the tokens.
  bool swap_ab = false;
  /// Outputs are scaled and stored at the end of a tile, not beside the products of the next.
  bool stores_at_end = false;

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

SPARSELOOM_API const char* name_of(Method method) noexcept;
/// Such as "tile 256x128x64, split-K 3"; empty if the row chose nothing.
SPARSELOOM_API std::string to_string(const Schedule& schedule);

}  // namespace sparseloom
