// Instances of the fp32 forward kernel (ffma_dds.cuh).
#include "kernels/cuda/sm80/ffma_dds.cuh"

namespace sparseloom::kernels::cuda::ffma {

cudaError_t ffma_dds_forward(const DdsParams& params, DdsShape shape, unsigned grid, int device,
                             cudaStream_t stream) noexcept {
  return launch_dds<Direction::forward>(params, shape, grid, device, stream);
}

}  // namespace sparseloom::kernels::cuda::ffma
