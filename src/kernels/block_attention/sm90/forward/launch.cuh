// Host side of forward_kernel: tensor maps and the launch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/block_attention/cuda/call.h"
#include "kernels/block_attention/cuda/common.h"
#include "kernels/block_attention/sm90/entry.h"
#include "kernels/block_attention/sm90/forward/kernel.cuh"
#include "kernels/block_attention/sm90/operands/tensors.h"
#include "kernels/shared/early_launch.cuh"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::attention {

template <class T>
int launch_forward(const Call& call) noexcept {
  const block_attention::Problem& problem = call.problem;
  const block_attention::Args& args = call.args;
  const auto stream = static_cast<cudaStream_t>(call.stream);
  ForwardParams params{};
  const TokenTensor q = of_queries(problem, args, args.q), k = of_keys(problem, args, args.k),
                    v = of_keys(problem, args, args.v);
  if (!token_map_possible(q) || !token_map_possible(k) || !token_map_possible(v))
    return cudaErrorInvalidValue;
  if (!encode_token_map(params.q, q) || !encode_token_map(params.k, k) || !encode_token_map(params.v, v))
    return cudaErrorInvalidValue;
  params.common = common_of(problem, args, args.of_queries);
  params.kv_block = problem.kv_block;
  params.out = const_cast<void*>(args.out.data);
  params.out_batch = args.out.batch;
  params.out_head = args.out.head;
  params.out_token = args.out.token;
  params.lse = args.lse;
  constexpr int kBytes = sizeof(ForwardStorage<T>);
  static_assert(kBytes <= 227 * 1024, "exceeds the 227 KB of shared memory of sm_90");
  if (const cudaError_t status = allow_shared_memory<forward_kernel<T>>(kBytes, problem.device);
      status != cudaSuccess)
    return status;
  const std::int64_t q_tiles = (problem.q_tokens + T::kQueries - 1) / T::kQueries;
  const std::int64_t whole = q_tiles * problem.heads * problem.batch, tiles = whole * call.splits;
  if (tiles >= std::int64_t{1} << 31) return cudaErrorInvalidValue;
  params.q_tiles = static_cast<std::int32_t>(q_tiles);
  params.tiles = static_cast<std::int32_t>(whole);
  params.splits = call.splits;
  const std::int64_t places = std::max(runtime::cuda_device(problem.device).multiprocessors, 1);
  const std::int64_t grid = std::min(tiles, places);  // few tiles: one to each multiprocessor
  if (call.splits > 1) {
    const ForwardWorkspace workspace(problem, call.splits);
    auto* const memory = static_cast<std::byte*>(args.workspace);
    params.parts = {reinterpret_cast<float*>(memory), reinterpret_cast<float*>(memory + workspace.out_at),
                    workspace.rows};
    if (problem.ragged || tiles > grid * T::kTeams) return cudaErrorInvalidValue;
  }
  auto* const work = static_cast<std::int32_t*>(args.workspace);
  const OrderParams order{params.common,
                          static_cast<std::int32_t>(tiles),
                          params.q_tiles,
                          params.common.heads,
                          1,
                          T::kQueries,
                          problem.kv_block,
                          true,
                          work,
                          nullptr};
  if (const int status = order_of(params.order, order, grid * T::kTeams, stream); status != cudaSuccess)
    return status;
  const int status = launch_kernel(
      {.grid = static_cast<unsigned>(grid), .block = T::kThreads, .shared_bytes = kBytes, .stream = stream},
      forward_kernel<T>, params);
  if (status != cudaSuccess || call.splits == 1) return status;
  const std::int64_t merging = (params.parts.rows + kMergeWarps - 1) / kMergeWarps;
  return launch_kernel({.grid = static_cast<unsigned>(merging), .block = kMergeWarps * 32, .stream = stream},
                       merge_kernel<T>, params);
}

}  // namespace sparseloom::kernels::cuda::attention
