// Instances of the fp32 dW kernel (sdd.cuh).
#include "kernels/bsr_linear/sm80/ffma/dw.cuh"
#include "kernels/bsr_linear/sm80/ffma/launch.cuh"

namespace sparseloom::kernels::cuda::ffma {
namespace {

template <class C>
cudaError_t launch(const SddParams& params, dim3 grid, int device, cudaStream_t stream) noexcept {
  return launch_kernel<&ffma_sdd_kernel<C>, C::kThreads, C::kSharedBytes>(params, grid, device, stream);
}

}  // namespace

cudaError_t ffma_sdd(const SddParams& params, dim3 grid, int device, cudaStream_t stream) noexcept {
  switch (sdd_rows(params.bm)) {
    case Sdd64::kRows: return launch<Sdd64>(params, grid, device, stream);
    case Sdd32::kRows: return launch<Sdd32>(params, grid, device, stream);
    case Sdd16::kRows: return launch<Sdd16>(params, grid, device, stream);
    case Sdd8::kRows: return launch<Sdd8>(params, grid, device, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda::ffma
