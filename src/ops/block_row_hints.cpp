// Announced indices of CUDA devices, shared by all threads.
#include "ops/block_row_hints.h"

#include "ops/shared_by_threads.h"
#include "runtime/cuda.h"
#include "sparseloom/ops.h"

namespace sparseloom {

void remember_index(const IndexView& host, const IndexView& on_device, int device) {
  if (runtime::cuda_compiled())
    shared_by_threads<plan::KnownIndices>().remember({device, on_device.crow}, host);
}

std::shared_ptr<const plan::BlockRowHints> ops::block_row_hints(const CommonProblem& p, Direction direction,
                                                                BlockRowGroups groups,
                                                                const IndexView& index) {
  // The order of a moment ago of a topology that moves helps nobody.
  if (p.device < 0 || direction == Direction::dw || !p.facts.known || p.facts.moving) return nullptr;
  return shared_by_threads<plan::KnownIndices>().hints({p.device, index.crow}, index, direction, groups);
}

}  // namespace sparseloom
