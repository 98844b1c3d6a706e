// sm90_wgmma_conv: selects the instance of kernel.cuh for the dtype and the direction.
#include <cuda_runtime.h>

#include "kernels/bsr_conv/sm90/entry.h"
#include "kernels/bsr_conv/sm90/forward_wgmma/pixels.h"

namespace sparseloom::kernels::cuda {

bool wgmma_conv_possible(const conv::Shape& shape, bool dx) noexcept {
  if (dx && shape.strides() != 1) return false;
  PixelTensor pixels = wgmma_conv::pixel_tensor(shape, dx);
  pixels.dtype = DType::bf16;
  pixels.channels = 8;  // the caller checks channels and alignment
  pixels.stride_bytes = 16;
  return pixel_map_possible(pixels);
}

int sm90_wgmma_conv(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept {
  const bool dx = args.direction == Direction::dx;
  if (args.direction == Direction::dw || !wgmma_conv_possible(shape, dx)) return cudaErrorInvalidValue;
  switch (args.dtype) {
    case DType::bf16:
      return dx ? wgmma_conv::conv_wgmma_dx_bf16(args, shape, schedule)
                : wgmma_conv::conv_wgmma_forward_bf16(args, shape, schedule);
    case DType::f16:
      return dx ? wgmma_conv::conv_wgmma_dx_f16(args, shape, schedule)
                : wgmma_conv::conv_wgmma_forward_f16(args, shape, schedule);
    case DType::f32:
    case DType::f64:
    case DType::i8:
    case DType::f8e4m3: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda
