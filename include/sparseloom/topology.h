// A topology with any number of blocks up to a capacity, which changes on the device: set_topology of
// layout.h for indices that are stored in part.
//
// The lists of such an index have `capacity` entries: the first crow[block_rows] are stored blocks, and the
// others, the free slots, are in no block row. Values and optimizer state have `capacity` blocks, and those
// of free slots are zero. Plan its products with Facts::moving.
#pragma once

#include <cstdint>

#include "sparseloom/export.h"
#include "sparseloom/layout.h"

namespace sparseloom {

/// Bits that the functions here set in `flags` and never clear: the reasons why the topology did not change.
enum TopologyFlag : std::int32_t {
  kTopologyOverflow = 1,    // the mask named more cells than there are slots
  kTopologyNaN = 2,         // a score was NaN
  kTopologyNoGradient = 4,  // the scores to grow by were not finite: a step that a loss scaler skips
};

/// The value of `moved` for a slot that was free and stays free; move_blocks (ops.h) skips it.
inline constexpr std::int32_t kSlotStaysFree = -2;

/// Rewrites the tables for mask [block_rows * block_cols], row-major; != 0: stored. `tables.requested`
/// receives the number of cells set in the mask. If they are more than tables.capacity, nothing changes,
/// kTopologyOverflow is set in *flags, and `moved` maps every block to itself; otherwise `moved` is -1 for
/// new blocks and for slots that become free, which move_blocks clears, and kSlotStaysFree for the other free
/// slots. Throws Error for sizes that do not fit and for null arrays.
SPARSELOOM_API void update_topology(const std::uint8_t* mask, const TopologyTables& tables,
                                    std::int32_t* flags);

/// The input of choose_blocks.
struct BlockChoice {
  std::int64_t block_rows = 0, block_cols = 0, capacity = 0;
  const std::int32_t* crow = nullptr;  // [block_rows + 1]
  const std::int32_t* col = nullptr;   // [capacity]
  const float* scores = nullptr;       // [capacity], of the stored blocks; the rest is not read
  const float* growth = nullptr;       // [block_rows * block_cols], -inf: may not grow; null: nothing grows
  // [2]: the requested number of blocks, and the share of the kept ones that is dropped and grown again.
  const double* budget = nullptr;
};

/// Writes the next topology to mask [block_rows * block_cols]: of the stored blocks, the best by `scores`
/// stay, stay - int(share * stay) of them with stay = min(stored, budget); then the best other cells by
/// `growth` are added up to the budget, including blocks that were just dropped. Ties go to the lowest index.
/// If a score is NaN, or growth NaN or infinite, the mask is that of the stored blocks and a bit of *flags
/// has the reason. Throws Error for sizes that do not fit and for null arrays.
SPARSELOOM_API void choose_blocks(const BlockChoice& choice, std::uint8_t* mask, std::int32_t* flags);

}  // namespace sparseloom
