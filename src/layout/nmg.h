// The check of a view of n:m:g before its sizes are divided by.
#pragma once

#include "sparseloom/nmg.h"

namespace sparseloom::layout {

/// Throws Error on a view that nmg_view would not make: without its table of patterns, or of other sizes.
void nmg_require_made(const char* op, const NmgView& w);

}  // namespace sparseloom::layout
