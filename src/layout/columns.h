// The check of a column index.
#pragma once

#include "sparseloom/layout.h"

namespace sparseloom::layout {

/// Checks a column index from outside against a valid row index: it must list every stored block once, by
/// block columns and within each by block rows. O(blocks). Throws Error naming the first bad entry.
void validate_columns(const char* op, const IndexView& index, const TransposedView& transposed);

}  // namespace sparseloom::layout
