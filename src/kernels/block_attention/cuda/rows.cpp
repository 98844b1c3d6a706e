#include "kernels/block_attention/rows.h"

namespace sparseloom::kernels {

#ifdef SPARSELOOM_HAVE_CUDA

std::span<const AttentionRow> attention_cuda_rows() {
  static const AttentionRow rows[] = {cuda::attention::sm90_wgmma(), cuda::attention::sm80_mma()};
  return rows;
}

#else

std::span<const AttentionRow> attention_cuda_rows() { return {}; }

#endif

}  // namespace sparseloom::kernels
