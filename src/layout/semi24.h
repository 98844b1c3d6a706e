// The 2:4 functions that src/ops calls: packing and pruning of ranges of rows, without threads.
#pragma once

#include <cstdint>
#include <limits>

#include "sparseloom/semi24.h"
#include "sparseloom/semi24_pruning.h"

namespace sparseloom::layout {

/// A group with more than two nonzeros.
struct Semi24Excess {
  std::int64_t row = std::numeric_limits<std::int64_t>::max(), group = 0;
  int nonzeros = 0;  // 0: there is none
};

/// Packs the rows [begin, end) like semi24_pack, up to the first group with more than two nonzeros, which is
/// returned.
Semi24Excess pack_rows(const ConstMatrixView& dense, void* values, std::uint8_t* positions,
                       std::int64_t begin, std::int64_t end);

/// Writes the mask of the rows [begin, end) like semi24_prune. begin is a multiple of 4, and so is end unless
/// it is w.rows. The dtype is not an 8-bit one.
void prune_rows(const ConstMatrixView& w, Semi24Pruning pruning, bool* mask, std::int64_t begin,
                std::int64_t end);

}  // namespace sparseloom::layout
