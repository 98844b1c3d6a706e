// The part of unpack that a thread takes.
#pragma once

#include <cstdint>

#include "sparseloom/layout.h"

namespace sparseloom::layout {

/// unpack() for the block rows [begin, end) alone, unchecked: dense is [index.rows, index.cols] of the
/// values' dtype.
void unpack_rows(const IndexView& index, const void* values, const MatrixView& dense, std::int64_t begin,
                 std::int64_t end);

}  // namespace sparseloom::layout
