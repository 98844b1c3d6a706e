// Host side of the forward kernel.
#pragma once

#include "kernels/block_attention/sm80/entry.h"
#include "kernels/block_attention/sm80/forward/kernel.cuh"
#include "kernels/shared/early_launch.cuh"

namespace sparseloom::kernels::cuda::attention::sm80 {

template <class T>
int launch_forward(const Call& call) noexcept {
  const Params params = params_of(call, call.args.of_queries);
  if (const cudaError_t status = allow_shared_memory<forward_kernel<T>>(T::kSharedBytes, call.problem.device);
      status != cudaSuccess)
    return status;
  return launch_kernel(
      {.grid = dim3(static_cast<unsigned>(params.q_tiles), static_cast<unsigned>(call.problem.heads),
                    static_cast<unsigned>(call.problem.batch)),
       .block = T::kThreads,
       .shared_bytes = T::kSharedBytes,
       .stream = static_cast<cudaStream_t>(call.stream)},
      forward_kernel<T>, params);
}

}  // namespace sparseloom::kernels::cuda::attention::sm80
