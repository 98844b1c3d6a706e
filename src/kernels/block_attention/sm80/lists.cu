// Lists of blocks: a warp for each row of a map, and a thread block for 32 columns of a transposed set.
#include "kernels/block_attention/sm80/lists.h"
#include "kernels/shared/early_launch.cuh"
#include "sparseloom/block_attention.h"

namespace sparseloom::kernels::cuda::attention {
namespace {

using block_attention::BlockMap;

constexpr std::int32_t kPartial = block_attention::Lists::kPartial;
constexpr int kWarps = 8;

__global__ void __launch_bounds__(kWarps * 32)
    lists_of_map_kernel(const __grid_constant__ BlockMap map, const __grid_constant__ WrittenSets to) {
  const std::int64_t list = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (list >= to.sets * to.lists) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t set = list / to.lists, row = list % to.lists;
  const std::uint8_t* const from =
      map.codes + set / map.heads * map.strides[0] + set % map.heads * map.strides[1] + row * map.strides[2];
  std::int32_t* const entries = to.indices + list * to.capacity;
  int count = 0;
  for (std::int64_t first = 0; first < map.columns; first += 32) {
    const std::int64_t column = first + lane;
    const std::uint8_t code = column < map.columns ? from[column * map.strides[3]] : 0;
    const bool kept = code != 0;
    const unsigned all = __ballot_sync(0xffffffff, kept);
    if (kept)
      entries[count + __popc(all & ((1u << lane) - 1))] =
          static_cast<std::int32_t>(column) | (code == 2 ? kPartial : 0);
    count += __popc(all);
  }
  if (lane == 0) to.counts[list] = count;
}

// Rows pass in strips of kStrip: each thread finds the entries of its row that lie among the thread block's
// 32 columns, as bits; then each warp collects the rows of one column.
constexpr int kStrip = 1024;

__global__ void __launch_bounds__(kStrip)
    transpose_lists_kernel(const __grid_constant__ ListSets from, const __grid_constant__ WrittenSets to) {
  __shared__ unsigned kept[kStrip], partial[kStrip];
  const std::int64_t set = blockIdx.y;
  const auto first_column = static_cast<std::int32_t>(blockIdx.x * 32);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t column = first_column + warp, list = set * to.lists + column;
  int count = 0;
  for (std::int64_t first = 0; first < from.lists; first += kStrip) {
    unsigned bits = 0, partial_bits = 0;
    if (const std::int64_t row = first + threadIdx.x; row < from.lists) {
      const std::int64_t at = set * from.lists + row;
      const std::int32_t* const entries = from.indices + at * from.capacity;
      const int entry_count = min(max(from.counts[at], 0), static_cast<int>(from.capacity));
      int low = 0, high = entry_count;
      while (low < high) {
        const int middle = (low + high) / 2;
        if ((entries[middle] & ~kPartial) < first_column)
          low = middle + 1;
        else
          high = middle;
      }
      for (; low < entry_count; ++low) {
        const std::int32_t entry = entries[low], distance = (entry & ~kPartial) - first_column;
        if (distance >= 32) break;
        bits |= 1u << distance;
        if ((entry & kPartial) != 0) partial_bits |= 1u << distance;
      }
    }
    __syncthreads();
    kept[threadIdx.x] = bits;
    partial[threadIdx.x] = partial_bits;
    __syncthreads();
    if (column >= to.lists) continue;
    const auto rows = static_cast<int>(min(from.lists - first, std::int64_t{kStrip}));
    for (int row = 0; row < rows; row += 32) {
      const bool mine = (kept[row + lane] >> warp & 1) != 0;
      const unsigned all = __ballot_sync(0xffffffff, mine);
      if (mine)
        to.indices[list * to.capacity + count + __popc(all & ((1u << lane) - 1))] =
            static_cast<std::int32_t>(first + row + lane) |
            ((partial[row + lane] >> warp & 1) != 0 ? kPartial : 0);
      count += __popc(all);
    }
  }
  if (lane == 0 && column < to.lists) to.counts[list] = count;
}

}  // namespace

int lists_of_map(const BlockMap& map, std::int32_t* counts, std::int32_t* indices, void* stream) noexcept {
  const WrittenSets to{counts, indices, map.batches * map.heads, map.rows, map.columns};
  const std::int64_t lists = to.sets * to.lists;
  if (lists == 0) return cudaSuccess;
  if (lists >= std::int64_t{1} << 31) return cudaErrorInvalidValue;
  return launch_kernel({.grid = static_cast<unsigned>((lists + kWarps - 1) / kWarps),
                        .block = kWarps * 32,
                        .stream = static_cast<cudaStream_t>(stream)},
                       lists_of_map_kernel, map, to);
}

int transpose_lists(const ListSets& from, const WrittenSets& to, void* stream) noexcept {
  if (to.sets * to.lists == 0) return cudaSuccess;
  if (to.sets > 65535 || to.lists >= std::int64_t{1} << 30) return cudaErrorInvalidValue;
  return launch_kernel(
      {.grid = dim3(static_cast<unsigned>((to.lists + 31) / 32), static_cast<unsigned>(to.sets)),
       .block = kStrip,
       .stream = static_cast<cudaStream_t>(stream)},
      transpose_lists_kernel, from, to);
}

}  // namespace sparseloom::kernels::cuda::attention
