// The checks of a selection, for every device.
#pragma once

#include "sparseloom/matrix_view.h"
#include "sparseloom/sparsifiers.h"

namespace sparseloom::sparsifiers {

/// Throws Error, in the name of sparsify, in the cases listed in include/sparseloom/sparsifiers.h.
void require_valid(const ConstMatrixView& dense, const SparsifierSpec& spec);

/// Whether there is nothing to do.
inline bool is_empty(const ConstMatrixView& dense, const SparsifierResult& result) noexcept {
  return dense.rows == 0 || dense.cols == 0 || (result.mask == nullptr && result.values == nullptr);
}

}  // namespace sparseloom::sparsifiers
