#include "kernels/block_attention/cuda/transpose.h"

#include "kernels/block_attention/sm80/lists.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda {

int transpose_lists(const TransposeLists& call, void* stream) noexcept {
  return attention::transpose_lists(
      {const_cast<std::int32_t*>(call.from_counts), const_cast<std::int32_t*>(call.from_indices), call.sets,
       call.from_lists, call.from_capacity},
      {call.to_counts, call.to_indices, call.sets, call.to_lists, call.to_capacity}, stream);
}

}  // namespace sparseloom::kernels::cuda

#endif
