// Instances of mma_sdd.cuh for f16.
#include "kernels/cuda/sm80/mma_sdd_launch.cuh"

namespace sparseloom::kernels::cuda {

cudaError_t mma_sdd_f16(const MmaSddParams& params, int bm, dim3 grid, int device,
                        cudaStream_t stream) noexcept {
  return mma_sdd::launch<mma_sdd::F16>(params, bm, grid, device, stream);
}

}  // namespace sparseloom::kernels::cuda
