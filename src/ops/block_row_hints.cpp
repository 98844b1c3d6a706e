// Announced indices of CUDA devices, shared by all threads.
#include "ops/block_row_hints.h"

#include "core/shared_by_threads.h"
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
  // Unknown facts: the topology moves, and a past order would not help.
  if (p.device < 0 || direction == Direction::dw || !p.facts.known) return nullptr;
  return shared_by_threads<plan::KnownIndices>().hints({p.device, index.crow}, index, direction, groups);
}

void ops::share_hints(const IndexView& all, const std::int32_t* crow_of_some, int device) {
  shared_by_threads<plan::KnownIndices>().share({device, all.crow}, {device, crow_of_some});
}

}  // namespace sparseloom
