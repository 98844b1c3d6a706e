// sm90_wgmma_sdd: dtype to the instance of wgmma_sdd.cuh.
#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm90/wgmma_sdd.h"

namespace sparseloom::kernels::cuda {
namespace {

int launch(const MatmulArgs& args) noexcept {
  switch (args.dtype) {
    case DType::bf16: return wgmma_sdd::dw_bf16(args);
    case DType::f16: return wgmma_sdd::dw_f16(args);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

int sm90_wgmma_sdd(const MatmulArgs& args) noexcept {
  if (args.direction != Direction::dw) return cudaErrorInvalidValue;
  // As in sm90_wgmma_dds: a plan sees sizes, not pointers, so what TMA cannot address is found out here.
  const int status = launch(args);
  return status == wgmma_sdd::kCannotMap ? sm80_mma_sdd(args) : status;
}

}  // namespace sparseloom::kernels::cuda
