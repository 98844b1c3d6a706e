// The part of unpack that one thread does.
#pragma once

#include <cstdint>

#include "sparseloom/layout.h"

namespace sparseloom::layout {

/// unpack() for the block rows [begin, end) alone, without checks. dense is [index.rows, index.cols] and has
/// the dtype of the values.
void unpack_rows(const IndexView& index, const void* values, const MatrixView& dense, std::int64_t begin,
                 std::int64_t end);

}  // namespace sparseloom::layout
