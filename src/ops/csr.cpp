// The CSR indices that a thread has validated.
#include "plan/seen_indices.h"
#include "sparseloom/csr_ops.h"

namespace sparseloom {

void csr_require_valid(const char* op, const CsrView& w, const std::uint64_t* writes) {
  static thread_local plan::SeenIndices seen;
  IndexView elements;  // an element is a block of one
  elements.rows = w.rows, elements.cols = w.cols, elements.blocks = w.stored, elements.block = {1, 1};
  elements.crow = w.crow, elements.col = w.col;
  const plan::CountedIndex counted{elements, writes != nullptr ? *writes : 0};
  const bool complete = w.crow != nullptr && (w.col != nullptr || w.stored == 0);
  if (complete && (writes != nullptr ? seen.contains(counted) : seen.contains(elements))) return;
  Csr::validate(op, w);
  writes != nullptr ? seen.add(counted) : seen.add(elements);
}

}  // namespace sparseloom
