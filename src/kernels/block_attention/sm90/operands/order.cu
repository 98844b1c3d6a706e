// A counting sort of each window of tiles by a thread block: 32 warps, each with a range of them.
#include "kernels/block_attention/sm90/operands/order.h"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/ptx/sm90/named_barrier.cuh"

namespace sparseloom::kernels::cuda::attention {
namespace {

constexpr int kWarps = 32, kClasses = 64;

/// The blocks that a tile meets, as the kernels count them.
__device__ int work_of(const OrderParams& params, int tile) {
  const Common& common = params.common;
  const int block = tile % params.blocks, head = tile / params.blocks % params.heads;
  const int batch = tile / params.blocks / params.heads;
  const Sequence sequence(common, batch);
  const int first = block * params.tile_tokens;
  if (first >= (params.of_queries ? sequence.q_tokens : sequence.kv_tokens)) return 0;
  int work = 0;
  for (int i = 0; i < params.lists_per_tile; ++i) {
    const std::int64_t list = list_of(common.lists, batch, head * params.lists_per_tile + i, block);
    const std::int32_t* const entries = common.lists.indices + list * common.lists.capacity;
    int count = min(max(common.lists.counts[list], 0), static_cast<int>(common.lists.capacity));
    if (common.causal) {
      // The first entry that lies behind the last key (before the first query) that counts, by bisection.
      const int last = min(first + params.tile_tokens, sequence.q_tokens) - 1 + sequence.shift;
      const int end = params.of_queries ? (max(last + 1, 0) + params.other_tokens - 1) / params.other_tokens
                                        : max(first - sequence.shift, 0) / params.other_tokens;
      int low = 0, high = count;
      while (low < high) {
        const int middle = (low + high) / 2;
        if ((entries[middle] & ~Lists::kPartial) < end)
          low = middle + 1;
        else
          high = middle;
      }
      count = params.of_queries ? low : count - low;
    }
    work += count;
  }
  return work;
}

__global__ void __launch_bounds__(kWarps * 32) order_kernel(const __grid_constant__ OrderParams params) {
  __shared__ int counts[kWarps][kClasses], totals[kClasses], least, most;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) least = 0x7fffffff, most = 0;
  for (int i = lane; i < kClasses; i += 32) counts[warp][i] = 0;
  __syncthreads();
  const int window = static_cast<int>(blockIdx.x) * params.window;
  const int window_end = min(window + params.window, params.tiles);
  const int range = (window_end - window + kWarps - 1) / kWarps,
            begin = min(window + warp * range, window_end);
  const int end = min(begin + range, window_end);
  int low = 0x7fffffff, high = 0;
  for (int tile = begin + lane; tile < end; tile += 32) {
    const int work = work_of(params, tile);
    params.work[tile] = work;
    low = min(low, work), high = max(high, work);
  }
  atomicMin(&least, __reduce_min_sync(0xffffffff, low));
  atomicMax(&most, __reduce_max_sync(0xffffffff, high));
  __syncthreads();
  const float scale = static_cast<float>(kClasses - 1) / static_cast<float>(max(most - least, 1));
  const auto class_of = [&](int tile) {
    return tile < end ? static_cast<int>(static_cast<float>(most - params.work[tile]) * scale) : kClasses;
  };
  for (int first = begin; first < end; first += 32) {
    const int mine = class_of(first + lane);
    const unsigned same = __match_any_sync(0xffffffff, mine);
    if (mine < kClasses && (same & ((1u << lane) - 1)) == 0) counts[warp][mine] += __popc(same);
    __syncwarp();
  }
  __syncthreads();
  // Where each class of each warp begins: classes first, warps in them.
  if (threadIdx.x < kClasses) {
    int sum = 0;
    for (int i = 0; i < kWarps; ++i) {
      const int count = counts[i][threadIdx.x];
      counts[i][threadIdx.x] = sum;
      sum += count;
    }
    totals[threadIdx.x] = sum;
    ptx::named_barrier_sync<1, kClasses>();
    int before = 0;
    for (unsigned i = 0; i < threadIdx.x; ++i) before += totals[i];
    for (int i = 0; i < kWarps; ++i) counts[i][threadIdx.x] += before;
  }
  __syncthreads();
  for (int first = begin; first < end; first += 32) {
    const int mine = class_of(first + lane);
    const unsigned same = __match_any_sync(0xffffffff, mine);
    if (mine < kClasses)
      params.order[window + counts[warp][mine] + __popc(same & ((1u << lane) - 1))] = first + lane;
    __syncwarp();
    if (mine < kClasses && (same & ((1u << lane) - 1)) == 0) counts[warp][mine] += __popc(same);
    __syncwarp();
  }
}

}  // namespace

int order_tiles(const OrderParams& params, cudaStream_t stream) noexcept {
  const auto windows = static_cast<unsigned>((params.tiles + params.window - 1) / params.window);
  return launch_kernel({.grid = windows, .block = kWarps * 32, .stream = stream}, order_kernel, params);
}

}  // namespace sparseloom::kernels::cuda::attention
