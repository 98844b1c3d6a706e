// Host side of backward_kernel, and of the stats before it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/block_attention/cuda/call.h"
#include "kernels/block_attention/cuda/common.h"
#include "kernels/block_attention/cuda/stats.cuh"
#include "kernels/block_attention/sm90/backward/kernel.cuh"
#include "kernels/block_attention/sm90/entry.h"
#include "kernels/block_attention/sm90/operands/tensors.h"
#include "kernels/shared/early_launch.cuh"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::attention {

template <class T>
int launch_backward(const Call& call) noexcept {
  const block_attention::Problem& problem = call.problem;
  const block_attention::Args& args = call.args;
  const auto stream = static_cast<cudaStream_t>(call.stream);
  BackwardParams params{};
  const TokenTensor q = of_queries(problem, args, args.q), k = of_keys(problem, args, args.k),
                    v = of_keys(problem, args, args.v), dout = of_queries(problem, args, args.dout);
  for (const TokenTensor& tensor : {q, k, v, dout})
    if (!token_map_possible(tensor)) return cudaErrorInvalidValue;
  if (!encode_token_map(params.q, q) || !encode_token_map(params.k, k) || !encode_token_map(params.v, v) ||
      !encode_token_map(params.dout, dout))
    return cudaErrorInvalidValue;
  const BackwardWorkspace workspace(problem, args.all_q_tokens);
  auto* const stats = static_cast<float*>(args.workspace);
  params.common = common_of(problem, args, args.of_keys);
  params.q_block = problem.q_block;
  const std::int64_t kv_tiles = (problem.kv_tokens + T::kKeys - 1) / T::kKeys;
  const std::int64_t tiles = kv_tiles * problem.kv_heads * problem.batch;
  if (tiles >= std::int64_t{1} << 31 || workspace.places * workspace.lists >= std::int64_t{1} << 31)
    return cudaErrorInvalidValue;
  params.kv_tiles = static_cast<std::int32_t>(kv_tiles);
  params.kv_heads = static_cast<std::int32_t>(problem.kv_heads);
  params.places = static_cast<std::int32_t>(workspace.places);
  params.stats = stats;
  params.dk = const_cast<void*>(args.dk.data);
  params.dv = const_cast<void*>(args.dv.data);
  const auto strides = [](const block_attention::Tensor& t, std::int64_t(&to)[3]) {
    to[0] = t.batch, to[1] = t.head, to[2] = t.token;
  };
  strides(args.dk, params.dk_strides);
  strides(args.dv, params.dv_strides);

  const AroundParams around = around_of(problem, args, workspace, params.common, stats);
  const dim3 units(static_cast<unsigned>(around.units), static_cast<unsigned>(problem.heads),
                   static_cast<unsigned>(problem.batch));
  constexpr int kBytes = sizeof(BackwardStorage<T>);
  static_assert(kBytes <= 227 * 1024, "exceeds the 227 KB of shared memory of sm_90");
  cudaError_t status = allow_shared_memory<backward_kernel<T>>(kBytes, problem.device);
  if (status != cudaSuccess) return status;
  if (around.units > 0)
    status = launch_kernel({.grid = units, .block = 256, .stream = stream},
                           stats_kernel<typename T::Element, T::kHeadDim>, around);
  if (status != cudaSuccess) return status;
  const int places = std::max(runtime::cuda_device(problem.device).multiprocessors, 1);
  const std::int64_t grid = std::min<std::int64_t>((tiles + T::kTeams - 1) / T::kTeams, places);
  auto* const work =
      reinterpret_cast<std::int32_t*>(static_cast<char*>(args.workspace) + workspace.order_at());
  const OrderParams order{params.common,
                          static_cast<std::int32_t>(tiles),
                          params.kv_tiles,
                          params.kv_heads,
                          params.common.heads_per_kv,
                          T::kKeys,
                          problem.q_block,
                          false,
                          work,
                          nullptr};
  if (const int ordered = order_of(params.order, order, grid * T::kTeams, stream); ordered != cudaSuccess)
    return ordered;
  if (tiles == 0) return cudaSuccess;
  return launch_kernel(
      {.grid = static_cast<unsigned>(grid), .block = T::kThreads, .shared_bytes = kBytes, .stream = stream},
      backward_kernel<T>, params);
}

}  // namespace sparseloom::kernels::cuda::attention
