// Instances of the fp32 dW kernel (dw.cuh).
#include "kernels/bsr_linear/sm80/ffma/dw.cuh"
#include "kernels/bsr_linear/sm80/ffma/launch.cuh"

namespace sparseloom::kernels::cuda::ffma {
namespace {

template <class C>
cudaError_t launch(const DwParams& params, dim3 grid, int device, cudaStream_t stream) noexcept {
  return launch_kernel<&ffma_dw_kernel<C>, C::kThreads, C::kSharedBytes>(params, grid, device, stream);
}

}  // namespace

cudaError_t ffma_dw(const DwParams& params, dim3 grid, int device, cudaStream_t stream) noexcept {
  switch (dw_rows(params.bm)) {
    case Dw64::kRows: return launch<Dw64>(params, grid, device, stream);
    case Dw32::kRows: return launch<Dw32>(params, grid, device, stream);
    case Dw16::kRows: return launch<Dw16>(params, grid, device, stream);
    case Dw8::kRows: return launch<Dw8>(params, grid, device, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda::ffma
