// The list of the CUDA kernels' rows. A row's number never changes.
#include "kernels/bsr_linear/cuda/rows.h"

namespace sparseloom::kernels {

std::span<const Kernel> cuda_kernels() {
#ifdef SPARSELOOM_HAVE_CUDA
  static const Kernel kernels[] = {
      cuda::sm90_wgmma_row(),    cuda::sm90_wgmma_narrow_row(),  cuda::sm90_wgmma_merged_row(),
      cuda::sm90_mma_row(),      cuda::sm90_mma_merged_row(),    cuda::sm80_mma_row(),
      cuda::sm80_ffma_row(),     cuda::sm90_split_row(),         cuda::sm90_split_narrow_row(),
      cuda::sm80_decode_row(),   cuda::sm80_decode_staged_row(), cuda::sm90_decode_lines_row(),
      cuda::sm80_dw_small_row(), cuda::sm90_shares_row(),        cuda::sm90_expanded_row(),
  };
  return kernels;
#else
  return {};
#endif
}

std::span<const ScaledKernel> cuda_scaled_kernels() {
#ifdef SPARSELOOM_HAVE_CUDA
  static const ScaledKernel kernels[] = {cuda::sm90_wgmma_scaled_row(), cuda::sm90_wgmma_narrow_scaled_row(),
                                         cuda::sm80_ffma_scaled_row()};
  return kernels;
#else
  return {};
#endif
}

}  // namespace sparseloom::kernels
