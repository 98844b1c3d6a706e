#include "kernels/bsr_conv/rows.h"

#include <algorithm>

namespace sparseloom::kernels {

#ifdef SPARSELOOM_HAVE_CUDA

std::span<const ConvRow> conv_cuda_rows() {
  using namespace cuda::conv_rows;
  static const ConvRow rows[] = {sm90_wgmma(), sm90_wgmma_narrow(), sm80_mma()};
  return rows;
}

namespace cuda::conv_rows {

Refusal refuse(const bsr_conv::Problem& p) {
  if (std::max(p.shape.in_pixels(), p.shape.out_pixels()) >= std::int64_t{1} << 31)
    return "counts pixels in 31 bits, and there are more";
  if (p.blocks * p.shape.taps() >= std::int64_t{1} << 31)
    return "counts stored blocks times taps in 31 bits, and there are more";
  return {};
}

}  // namespace cuda::conv_rows

#else

std::span<const ConvRow> conv_cuda_rows() { return {}; }

#endif

}  // namespace sparseloom::kernels
