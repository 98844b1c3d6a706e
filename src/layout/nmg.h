// The check of a view of n:m:g before its sizes are divided by, and the copy from a dense weight.
#pragma once

#include <cstdint>

#include "sparseloom/matrix_view.h"
#include "sparseloom/nmg.h"

namespace sparseloom::layout {

/// Throws Error on a view that nmg_view would not make: without its table of patterns, or of other sizes.
void nmg_require_made(const char* op, const NmgView& w);

/// Copies the elements of W to the slots of strips [begin, end), counted over all chunks; zero as padding.
void nmg_pack_strips(const ConstMatrixView& dense, const NmgView& w, void* values, std::int64_t begin,
                     std::int64_t end);

}  // namespace sparseloom::layout
