// sm90_wgmma_dds: dtype and direction to the instance of wgmma_dds.cuh.
#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm90/wgmma_dds.h"

namespace sparseloom::kernels::cuda {
namespace {

int launch(const MatmulArgs& args) noexcept {
  const bool dx = args.direction == Direction::dx;
  switch (args.dtype) {
    case DType::bf16: return dx ? wgmma_dds::dx_bf16(args) : wgmma_dds::forward_bf16(args);
    case DType::f16: return dx ? wgmma_dds::dx_f16(args) : wgmma_dds::forward_f16(args);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

int sm90_wgmma_dds(const MatmulArgs& args) noexcept {
  if (args.direction == Direction::dw) return cudaErrorInvalidValue;
  // TMA wants bases and rows in multiples of 16 bytes. A plan sees sizes, not pointers, so a view that begins or strides otherwise
  // is found out here, and the kernel that takes any alignment runs instead.
  const int status = launch(args);
  return status == wgmma_dds::kCannotMap ? sm80_mma_dds(args) : status;
}

}  // namespace sparseloom::kernels::cuda
