// sm90_wgmma_conv_dw: selects the instance of kernel.cuh for the dtype.
#include <cuda_runtime.h>

#include "kernels/bsr_conv/sm90/dw_wgmma/entry.h"
#include "kernels/bsr_conv/sm90/forward_wgmma/entry.h"
#include "kernels/bsr_linear/sm90/wgmma/dw/deal.h"

namespace sparseloom::kernels::cuda {

int sm90_wgmma_conv_dw(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept {
  if (args.direction != Direction::dw || args.index.blocks == 0 || !wgmma_conv_possible(shape, false))
    return cudaErrorInvalidValue;
  const int most_blocks = wgmma::dw::most_blocks_of(schedule, wgmma::dw::kStep16, args.index.block);
  if (most_blocks == 0) return cudaErrorInvalidValue;
  switch (args.dtype) {
    case DType::bf16: return wgmma_conv_dw::conv_wgmma_dw_bf16(args, shape, most_blocks);
    case DType::f16: return wgmma_conv_dw::conv_wgmma_dw_f16(args, shape, most_blocks);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda
