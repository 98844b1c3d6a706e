// What src/ops calls of the 2:4 layout: packing and pruning of ranges of rows, which know of no threads.
#pragma once

#include <cstdint>
#include <limits>

#include "sparseloom/semi24.h"
#include "sparseloom/semi24_pruning.h"

namespace sparseloom::layout {

/// A group that holds more nonzeros than two.
struct Semi24Excess {
  std::int64_t row = std::numeric_limits<std::int64_t>::max(), group = 0;
  int nonzeros = 0;  // 0: there is none
};

/// Packs the rows [begin, end) as semi24_pack does, up to the first group with more than two nonzeros, which
/// is returned.
Semi24Excess pack_rows(const ConstMatrixView& dense, void* values, std::uint8_t* positions,
                       std::int64_t begin, std::int64_t end);

/// Writes the mask of the rows [begin, end) as semi24_prune does. begin is a multiple of 4, and end too
/// unless it is w.rows. The dtype is not an 8-bit one.
void prune_rows(const ConstMatrixView& w, Semi24Pruning pruning, bool* mask, std::int64_t begin,
                std::int64_t end);

}  // namespace sparseloom::layout
