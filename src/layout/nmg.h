// What functions of n:m:g check of a view before they divide by its sizes.
#pragma once

#include "sparseloom/nmg.h"

namespace sparseloom::layout {

/// Throws Error on a view without the table of patterns that nmg_view gives it.
void nmg_require_made(const char* op, const NmgView& w);

}  // namespace sparseloom::layout
