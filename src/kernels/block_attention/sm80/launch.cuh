// Host side of the kernels of this folder.
#pragma once

#include "kernels/block_attention/cuda/stats.cuh"
#include "kernels/block_attention/sm80/backward.cuh"
#include "kernels/block_attention/sm80/entry.h"
#include "kernels/block_attention/sm80/forward.cuh"
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

inline Params backward_params(const Call& call, const Lists& lists, const BackwardWorkspace& workspace) {
  Params params = params_of(call, lists);
  params.stats = static_cast<const float*>(call.args.workspace);
  params.places = static_cast<std::int32_t>(workspace.places);
  return params;
}

template <class T>
int launch_keys(const Call& call) noexcept {
  const block_attention::Problem& problem = call.problem;
  const auto stream = static_cast<cudaStream_t>(call.stream);
  const BackwardWorkspace workspace(problem, call.args.all_q_tokens);
  const Params params = backward_params(call, call.args.of_keys, workspace);
  const auto batch = static_cast<unsigned>(problem.batch);
  const AroundParams around =
      around_of(problem, call.args, workspace, params.common, static_cast<float*>(call.args.workspace));
  cudaError_t status = allow_shared_memory<keys_kernel<T>>(T::kSharedBytes, problem.device);
  if (status != cudaSuccess) return status;
  if (around.units > 0)
    status = launch_kernel(
        {.grid = dim3(static_cast<unsigned>(around.units), static_cast<unsigned>(problem.heads), batch),
         .block = 256,
         .stream = stream},
        stats_kernel<typename T::Element, T::kHeadDim>, around);
  if (status != cudaSuccess || params.kv_tiles == 0) return status;
  return launch_kernel(
      {.grid = dim3(static_cast<unsigned>(params.kv_tiles), static_cast<unsigned>(problem.kv_heads), batch),
       .block = T::kThreads,
       .shared_bytes = T::kSharedBytes,
       .stream = stream},
      keys_kernel<T>, params);
}

template <class T>
int launch_dq(const Call& call) noexcept {
  const block_attention::Problem& problem = call.problem;
  const BackwardWorkspace workspace(problem, call.args.all_q_tokens);
  const Params params = backward_params(call, call.args.of_queries, workspace);
  if (const cudaError_t status = allow_shared_memory<dq_kernel<T>>(T::kSharedBytes, problem.device);
      status != cudaSuccess)
    return status;
  return launch_kernel(
      {.grid = dim3(static_cast<unsigned>(params.q_tiles), static_cast<unsigned>(problem.heads),
                    static_cast<unsigned>(problem.batch)),
       .block = T::kThreads,
       .shared_bytes = T::kSharedBytes,
       .stream = static_cast<cudaStream_t>(call.stream)},
      dq_kernel<T>, params);
}

}  // namespace sparseloom::kernels::cuda::attention::sm80
