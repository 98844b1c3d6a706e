// A counting sort of each window of tiles by a thread block: 16 warps, each with a range of them.
#include "kernels/block_attention/sm90/operands/order.h"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/ptx/sm90/named_barrier.cuh"

namespace sparseloom::kernels::cuda::attention {
namespace {

constexpr int kWarps = 16, kClasses = 64;
// Rounds up to which long tiles go first: each thread block looks at all tiles for them.
constexpr int kLongRounds = 64;

struct Windows {
  std::int32_t slots;
  std::int32_t tiles;  // of a window
  bool long_first;
};

/// The blocks that a tile meets, as the kernels count them.
__device__ __forceinline__ int work_of(const OrderParams& params, int tile) {
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

/// The sum over the thread block, to all its threads.
__device__ __forceinline__ int sum_of(int value, int (&shared)[kWarps]) {
  const int sum = __reduce_add_sync(0xffffffff, value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = sum;
  __syncthreads();
  return __reduce_add_sync(0xffffffff, threadIdx.x % 32 < kWarps ? shared[threadIdx.x % 32] : 0);
}

// Each thread block sorts a window, and counts the long tiles of all for itself.
__global__ void __launch_bounds__(kWarps * 32, 1)
    order_kernel(const __grid_constant__ OrderParams params, Windows windows) {
  __shared__ int counts[kWarps][kClasses], totals[kClasses], sums[kWarps], least, most;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int window = static_cast<int>(blockIdx.x) * windows.tiles;
  const int window_end = min(window + windows.tiles, params.tiles);
  if (threadIdx.x == 0) least = 0x7fffffff, most = 0;
  if (threadIdx.x == 0 && blockIdx.x == 0) *params.next = windows.slots;
  for (int i = lane; i < kClasses; i += 32) counts[warp][i] = 0;
  int long_from = 0x7fffffff, long_before = 0, long_of_all = 0;
  if (windows.long_first) {
    int sum = 0;
    for (int tile = static_cast<int>(threadIdx.x); tile < params.tiles; tile += kWarps * 32)
      sum += work_of(params, tile);
    long_from = 2 * (sum_of(sum, sums) / params.tiles) + 1;
    int before = 0, all = 0;
    for (int tile = static_cast<int>(threadIdx.x); tile < params.tiles; tile += kWarps * 32)
      if (work_of(params, tile) >= long_from) ++all, before += tile < window;
    long_before = sum_of(before, sums);
    long_of_all = sum_of(all, sums);
  }
  __syncthreads();
  const int range = (window_end - window + kWarps - 1) / kWarps;
  const int begin = min(window + warp * range, window_end), end = min(begin + range, window_end);
  int low = 0x7fffffff, high = 0;
  for (int tile = begin + lane; tile < end; tile += 32) {
    const int work = work_of(params, tile);
    params.work[tile] = work;
    low = min(low, work);
    if (work < long_from) high = max(high, work);
  }
  atomicMin(&least, __reduce_min_sync(0xffffffff, low));
  atomicMax(&most, __reduce_max_sync(0xffffffff, high));
  __syncthreads();
  // Class 0: the long ones. Behind a warp's range there is none.
  const float scale = static_cast<float>(kClasses - 2) / static_cast<float>(max(most - least, 1));
  const auto class_of = [&](int tile) {
    if (tile >= end) return kClasses;
    const int work = params.work[tile];
    return work >= long_from ? 0 : 1 + static_cast<int>(static_cast<float>(most - work) * scale);
  };
  for (int first = begin; first < end; first += 32) {
    const int mine = class_of(first + lane);
    const unsigned same = __match_any_sync(0xffffffff, mine);
    if (mine < kClasses && (same & ((1u << lane) - 1)) == 0) counts[warp][mine] += __popc(same);
    __syncwarp();
  }
  __syncthreads();
  // Where each class of each warp begins: classes first, warps in them. Long tiles go before all windows.
  if (threadIdx.x < kClasses) {
    int sum = 0;
    for (int i = 0; i < kWarps; ++i) {
      const int count = counts[i][threadIdx.x];
      counts[i][threadIdx.x] = sum;
      sum += count;
    }
    totals[threadIdx.x] = sum;
    ptx::named_barrier_sync<1, kClasses>();
    int before = long_before;
    if (threadIdx.x > 0) before = long_of_all + window - long_before;
    for (unsigned i = 1; i < threadIdx.x; ++i) before += totals[i];
    for (int i = 0; i < kWarps; ++i) counts[i][threadIdx.x] += before;
  }
  __syncthreads();
  for (int first = begin; first < end; first += 32) {
    const int mine = class_of(first + lane);
    const unsigned same = __match_any_sync(0xffffffff, mine);
    if (mine < kClasses) params.order[counts[warp][mine] + __popc(same & ((1u << lane) - 1))] = first + lane;
    __syncwarp();
    if (mine < kClasses && (same & ((1u << lane) - 1)) == 0) counts[warp][mine] += __popc(same);
    __syncwarp();
  }
}

}  // namespace

int order_tiles(const OrderParams& params, std::int64_t slots, cudaStream_t stream) noexcept {
  const bool as_whole = params.tiles <= 6 * slots;
  const Windows windows{static_cast<std::int32_t>(slots),
                        static_cast<std::int32_t>(as_whole ? params.tiles : 2 * slots),
                        !as_whole && params.tiles <= kLongRounds * slots};
  const auto grid = static_cast<unsigned>((params.tiles + windows.tiles - 1) / windows.tiles);
  return launch_kernel({.grid = grid, .block = kWarps * 32, .stream = stream}, order_kernel, params, windows);
}

}  // namespace sparseloom::kernels::cuda::attention
