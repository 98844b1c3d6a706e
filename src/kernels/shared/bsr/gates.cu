// Gates of stored blocks: the lists of the blocks whose gate is not zero, their values times their gates, and
// the gradients of both.
//
//   place, crow, col     a thread block takes kChunk blocks of the weight
//   ccol, row, slot      the same over the transposed lists
//   values * gates       a thread block takes kThreads * kEach vectors of the values
//   gradients            a thread block (of large blocks) or a warp (of small ones) takes one block
//
// A chunk's first rank is the number of live blocks before it, which each thread block counts anew from the
// gates: they lie in L2, and nobody waits for another thread block. Up to kFew blocks all but the gradients
// is one launch, in which each thread block counts all of the gates; beyond, a second launch reads the places
// that the first one wrote. Rejected: one thread block for all, as topology.cuh has, which scans 65536 gates
// (4096 x 4096 in blocks of 16) in 32 rounds, the others idle.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

#include "kernels/shared/bsr/gates.h"
#include "sparseloom/packed_index.h"

namespace sparseloom::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr unsigned kWarp = 0xffffffffu;
constexpr int kPerThread = 8, kChunk = kThreads * kPerThread;  // blocks of a thread, of a thread block
constexpr int kEach = 4;                                       // vectors of values in flight per thread
constexpr int kLarge = 2048;         // elements of a block that a thread block takes
constexpr int kFew = 32 * kThreads;  // blocks whose gates each thread block of the one launch reads

__device__ __forceinline__ float as_f32(float x) { return x; }
__device__ __forceinline__ float as_f32(__half x) { return __half2float(x); }
__device__ __forceinline__ float as_f32(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void round_to(float& to, float x) { to = x; }
__device__ __forceinline__ void round_to(__half& to, float x) { to = __float2half_rn(x); }
__device__ __forceinline__ void round_to(__nv_bfloat16& to, float x) { to = __float2bfloat16_rn(x); }

struct Lists {
  std::int64_t blocks, block_rows, block_cols;
  const std::int32_t *crow, *col, *ccol, *row, *slot;  // of the weight
  const float* gates;
  const void* values;
  std::int32_t *index, *place;  // of what is left
  void* gated;
  IndexSegments at;
  unsigned chunks;
};

__device__ __forceinline__ std::int32_t warp_sum(std::int32_t x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(kWarp, x, distance);
  return x;
}

/// Ranks of a chunk's live entries among all, and how many there are in all. The warps' sums come first, at
/// multiples of 16 bytes: behind `through`, the compiler widened their loads to whole vectors that began with
/// its last entry, which another thread writes meanwhile (racecheck).
struct Ranks {
  alignas(16) std::int32_t before[kWarps];
  std::int32_t all[kWarps], own[kWarps];
  std::int32_t through[kChunk + 1];  // live entries before entry `first + i`
};

/// Fills ranks.through and returns the number of live entries of [0, count). live(i) says whether i is.
template <class Live>
__device__ __forceinline__ std::int32_t rank_chunk(Ranks& ranks, std::int64_t first, std::int64_t count,
                                                   const Live& live) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  std::int32_t before = 0, all = 0;
#pragma unroll 8
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
    const bool is = live(i);
    all += is;
    before += is && i < first;
  }
  bool mine[kPerThread];
  std::int32_t own = 0;
#pragma unroll
  for (int u = 0; u < kPerThread; ++u) {
    const std::int64_t i = first + threadIdx.x * kPerThread + u;
    mine[u] = i < count && live(i);
    own += mine[u];
  }
  std::int32_t through = own;  // of this lane and those below
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::int32_t lower = __shfl_up_sync(kWarp, through, distance);
    if (lane >= distance) through += lower;
  }
  before = warp_sum(before), all = warp_sum(all);
  if (lane == 31) ranks.before[warp] = before, ranks.all[warp] = all, ranks.own[warp] = through;
  __syncthreads();
  std::int32_t rank = through - own, total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    rank += ranks.before[w] + (w < warp ? ranks.own[w] : 0);
    total += ranks.all[w];
  }
#pragma unroll
  for (int u = 0; u < kPerThread; ++u) {
    ranks.through[threadIdx.x * kPerThread + u] = rank;
    rank += mine[u];
  }
  if (threadIdx.x == kThreads - 1) ranks.through[kChunk] = rank;
  __syncthreads();
  return total;
}

/// to[r] = the number of live entries before entry bounds[r], of those r whose entry lies in this chunk. The
/// last chunk has the end of the list, too.
__device__ __forceinline__ void write_bounds(const Ranks& ranks, std::int64_t first, bool last,
                                             const std::int32_t* bounds, std::int64_t count,
                                             std::int32_t* to) {
  for (std::int64_t r = threadIdx.x; r < count; r += kThreads) {
    const std::int64_t place = __ldg(bounds + r) - first;
    if (place >= 0 && (place < kChunk || (last && place == kChunk))) to[r] = ranks.through[place];
  }
}

/// Zeros the entries of this chunk that are free slots.
__device__ __forceinline__ void clear_free(std::int32_t* list, std::int64_t first, std::int64_t live,
                                           std::int64_t count) {
  const std::int64_t end = min(first + kChunk, count);
  for (std::int64_t i = max(first, live) + threadIdx.x; i < end; i += kThreads) list[i] = 0;
}

__device__ __forceinline__ void clear_gap(std::int32_t* index, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) index[i] = 0;
}

__device__ __forceinline__ void write_rows(const Lists& lists) {
  __shared__ Ranks ranks;
  const std::int64_t first = std::int64_t{blockIdx.x} * kChunk, blocks = lists.blocks;
  const auto live = [&](std::int64_t i) { return __ldg(lists.gates + i) != 0; };
  const std::int32_t total = rank_chunk(ranks, first, blocks, live);
  std::int32_t* const col = lists.index + lists.at.col;
  const std::int64_t end = min(first + kChunk, blocks);
  for (std::int64_t i = first + threadIdx.x; i < end; i += kThreads) {
    const bool is = live(i);
    const std::int32_t to = ranks.through[i - first];
    lists.place[i] = is ? to : -1;
    if (is) col[to] = __ldg(lists.col + i);
  }
  clear_free(col, first, total, blocks);
  write_bounds(ranks, first, blockIdx.x + 1 == lists.chunks, lists.crow, lists.block_rows + 1,
               lists.index + lists.at.crow);
  if (blockIdx.x != 0) return;
  clear_gap(lists.index, lists.at.crow + lists.block_rows + 1, lists.at.col);
  clear_gap(lists.index, lists.at.col + blocks, lists.at.ccol);
}

/// All live blocks as bits, and how many of them lie before each word.
struct LiveSet {
  std::uint32_t word[kThreads];
  std::int32_t before[kThreads];

  /// The rank of block i among the live ones; -1 if it is not one of them.
  __device__ std::int32_t place(std::int64_t i) const {
    const std::uint32_t bits = word[i / 32], bit = 1u << (i % 32);
    return (bits & bit) != 0 ? before[i / 32] + __popc(bits & (bit - 1)) : -1;
  }
};

/// Fills the set from at most kFew gates; the whole thread block.
__device__ __forceinline__ void fill(LiveSet& live, const float* gates, std::int64_t blocks) {
  __shared__ alignas(16) std::int32_t sums[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 4
  for (int w = warp; w < kThreads; w += kWarps) {
    const std::int64_t i = std::int64_t{w} * 32 + lane;
    const std::uint32_t bits = __ballot_sync(kWarp, i < blocks && __ldg(gates + i) != 0);
    if (lane == 0) live.word[w] = bits;
  }
  __syncthreads();
  const std::int32_t own = __popc(live.word[threadIdx.x]);
  std::int32_t through = own;  // of this word and those of lower lanes
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::int32_t lower = __shfl_up_sync(kWarp, through, distance);
    if (lane >= distance) through += lower;
  }
  if (lane == 31) sums[warp] = through;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) through += w < warp ? sums[w] : 0;
  live.before[threadIdx.x] = through - own;
  __syncthreads();
}

/// chunk: which kChunk entries of the transposed lists. place(i): the rank of block i, or -1.
template <class Place>
__device__ __forceinline__ void write_columns(const Lists& lists, unsigned chunk, const Place& place_of) {
  __shared__ Ranks ranks;
  const std::int64_t first = std::int64_t{chunk} * kChunk, blocks = lists.blocks;
  const auto place = [&](std::int64_t t) { return place_of(__ldg(lists.slot + t)); };
  const std::int32_t total = rank_chunk(ranks, first, blocks, [&](std::int64_t t) { return place(t) >= 0; });
  std::int32_t *const row = lists.index + lists.at.row, *const slot = lists.index + lists.at.slot;
  const std::int64_t end = min(first + kChunk, blocks);
  for (std::int64_t t = first + threadIdx.x; t < end; t += kThreads) {
    const std::int32_t from = place(t), to = ranks.through[t - first];
    if (from < 0) continue;
    row[to] = __ldg(lists.row + t);
    slot[to] = from;
  }
  clear_free(row, first, total, blocks);
  clear_free(slot, first, total, blocks);
  write_bounds(ranks, first, chunk + 1 == lists.chunks, lists.ccol, lists.block_cols + 1,
               lists.index + lists.at.ccol);
  if (chunk != 0) return;
  clear_gap(lists.index, lists.at.ccol + lists.block_cols + 1, lists.at.row);
  clear_gap(lists.index, lists.at.row + blocks, lists.at.slot);
}

/// One element, or a vector of 16 bytes, that is mapped in fp32.
template <class T, bool kVectors>
struct Words {
  static constexpr int kCount = kVectors ? 16 / static_cast<int>(sizeof(T)) : 1;
  struct alignas(kVectors ? 16 : sizeof(T)) Word {
    T element[kCount];
  };

  __device__ static Word load(const T* from) {
    Word word;
    if constexpr (kVectors)
      *reinterpret_cast<uint4*>(&word) = __ldg(reinterpret_cast<const uint4*>(from));
    else
      word.element[0] = *from;
    return word;
  }
  __device__ static Word times(float factor, const Word& word) {
    Word product;
#pragma unroll
    for (int e = 0; e < kCount; ++e) round_to(product.element[e], factor * as_f32(word.element[e]));
    return product;
  }
  __device__ static void store(T* to, const Word& word) { *reinterpret_cast<Word*>(to) = word; }
};

/// group: which kThreads * kEach vectors of the values. shift: log2 of a block's vectors.
template <class T, bool kVectors, class Place>
__device__ __forceinline__ void write_values(const Lists& lists, unsigned group, int shift,
                                             const Place& place_of) {
  using W = Words<T, kVectors>;
  const auto* values = static_cast<const T*>(lists.values);
  auto* gated = static_cast<T*>(lists.gated);
  const std::int64_t words = lists.blocks << shift,
                     first = std::int64_t{group} * kThreads * kEach + threadIdx.x;
  typename W::Word word[kEach];
  std::int32_t place[kEach];
  float gate[kEach];
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const std::int64_t v = first + u * kThreads;
    place[u] = -1;
    if (v >= words) continue;
    gate[u] = __ldg(lists.gates + (v >> shift));
    place[u] = place_of(v >> shift);
    if (gate[u] != 0) word[u] = W::load(values + v * W::kCount);
  }
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const std::int64_t v = first + u * kThreads, inside = v & ((std::int64_t{1} << shift) - 1);
    if (place[u] < 0) continue;
    W::store(gated + ((std::int64_t{place[u]} << shift) + inside) * W::kCount, W::times(gate[u], word[u]));
  }
}

/// The one launch of at most kFew blocks.
template <class T, bool kVectors>
__global__ void __launch_bounds__(kThreads) few_kernel(const __grid_constant__ Lists lists, int shift) {
  if (blockIdx.x < lists.chunks) {
    write_rows(lists);
    return;
  }
  __shared__ LiveSet live;
  fill(live, lists.gates, lists.blocks);
  const auto place = [&](std::int64_t i) { return live.place(i); };
  const unsigned chunk = blockIdx.x - lists.chunks;
  if (chunk < lists.chunks)
    write_columns(lists, chunk, place);
  else
    write_values<T, kVectors>(lists, chunk - lists.chunks, shift, place);
}

__global__ void __launch_bounds__(kThreads) rows_kernel(const __grid_constant__ Lists lists) {
  write_rows(lists);
}

/// After rows_kernel, whose places it reads.
template <class T, bool kVectors>
__global__ void __launch_bounds__(kThreads) values_kernel(const __grid_constant__ Lists lists, int shift) {
  const auto place = [&](std::int64_t i) { return __ldg(lists.place + i); };
  if (blockIdx.x < lists.chunks)
    write_columns(lists, blockIdx.x, place);
  else
    write_values<T, kVectors>(lists, blockIdx.x - lists.chunks, shift, place);
}

/// kGroup: threads to a block of the weight, kThreads or a warp.
template <class T, bool kVectors, int kGroup>
__global__ void __launch_bounds__(kThreads)
    gradients_kernel(const __grid_constant__ GateGradients call, int words) {
  using W = Words<T, kVectors>;
  __shared__ float sums[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t i =
      kGroup == kThreads ? std::int64_t{blockIdx.x} : std::int64_t{blockIdx.x} * kWarps + warp;
  if (i >= call.blocks) return;  // a whole group
  const int member = static_cast<int>(threadIdx.x) % kGroup;
  const std::int32_t place = __ldg(call.place + i);
  const float gate = __ldg(call.gates + i);
  const std::int64_t size = std::int64_t{words} * W::kCount;
  const T* gradient = static_cast<const T*>(call.gradient) + (place < 0 ? 0 : place) * size;
  const T* values = static_cast<const T*>(call.values) + i * size;
  T* const dvalues = call.dvalues == nullptr ? nullptr : static_cast<T*>(call.dvalues) + i * size;
  float sum = 0;
#pragma unroll 2
  for (int w = member; w < words; w += kGroup) {
    typename W::Word g = {};
    if (place >= 0) {
      g = W::load(gradient + w * W::kCount);
      if (call.dgates != nullptr) {
        const typename W::Word v = W::load(values + w * W::kCount);
#pragma unroll
        for (int e = 0; e < W::kCount; ++e) sum = fmaf(as_f32(g.element[e]), as_f32(v.element[e]), sum);
      }
      g = W::times(gate, g);
    }
    if (dvalues != nullptr) W::store(dvalues + w * W::kCount, g);
  }
  if (call.dgates == nullptr) return;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(kWarp, sum, distance);
  if constexpr (kGroup == kThreads) {
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w];
  }
  if (member == 0) call.dgates[i] = place < 0 ? 0 : sum;
}

unsigned groups_of(std::int64_t count, std::int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

/// Whether vectors of 16 bytes may be read and written at all of them.
template <class... Pointer>
bool aligned(const Pointer*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) | ...) % 16) == 0;
}

template <class T, bool kVectors>
cudaError_t launch_blocks(const Lists& lists, std::int64_t elements, cudaStream_t stream) {
  const std::int64_t words = elements / Words<T, kVectors>::kCount;  // a power of two
  const unsigned groups = groups_of(lists.blocks * words, kThreads * kEach);
  const int shift = std::countr_zero(static_cast<std::uint64_t>(words));
  if (lists.blocks <= kFew) {
    few_kernel<T, kVectors><<<2 * lists.chunks + groups, kThreads, 0, stream>>>(lists, shift);
    return cudaGetLastError();
  }
  rows_kernel<<<lists.chunks, kThreads, 0, stream>>>(lists);
  if (const cudaError_t error = cudaGetLastError()) return error;
  values_kernel<T, kVectors><<<lists.chunks + groups, kThreads, 0, stream>>>(lists, shift);
  return cudaGetLastError();
}

template <class T, bool kVectors>
cudaError_t launch_gradients(const GateGradients& call, cudaStream_t stream) {
  const int elements = call.block.rows * call.block.cols, words = elements / Words<T, kVectors>::kCount;
  if (elements >= kLarge)
    gradients_kernel<T, kVectors, kThreads>
        <<<static_cast<unsigned>(call.blocks), kThreads, 0, stream>>>(call, words);
  else
    gradients_kernel<T, kVectors, 32><<<groups_of(call.blocks, kWarps), kThreads, 0, stream>>>(call, words);
  return cudaGetLastError();
}

/// Runs body(T{}) for the type of the values.
template <class Body>
cudaError_t with_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f16: return body(__half{});
    case DType::bf16: return body(__nv_bfloat16{});
    default: return body(float{});
  }
}

}  // namespace

int sm80_gate_blocks(const IndexView& index, const TransposedView& transposed, DType dtype,
                     const void* values, const float* gates, const GatedBlocks& gated,
                     void* stream) noexcept {
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  Lists lists;
  lists.blocks = index.blocks, lists.block_rows = index.block_rows(), lists.block_cols = index.block_cols();
  lists.crow = index.crow, lists.col = index.col;
  lists.ccol = transposed.ccol, lists.row = transposed.row, lists.slot = transposed.slot;
  lists.gates = gates, lists.values = values;
  lists.index = gated.index, lists.gated = gated.values, lists.place = gated.place;
  lists.at = index_segments(lists.block_rows, lists.block_cols, lists.blocks);
  lists.chunks = lists.blocks == 0 ? 1 : groups_of(lists.blocks, kChunk);
  const bool vectors = aligned(static_cast<const char*>(values), static_cast<const char*>(gated.values));
  return with_type(dtype, [&]<class T>(T) {
    const std::int64_t elements = index.block_elements();
    return vectors ? launch_blocks<T, true>(lists, elements, cuda_stream)
                   : launch_blocks<T, false>(lists, elements, cuda_stream);
  });
}

int sm80_gate_gradients(const GateGradients& call, void* stream) noexcept {
  if (call.blocks == 0 || (call.dvalues == nullptr && call.dgates == nullptr)) return cudaSuccess;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  const bool vectors = aligned(static_cast<const char*>(call.values), static_cast<const char*>(call.gradient),
                               static_cast<const char*>(call.dvalues));
  return with_type(call.dtype, [&]<class T>(T) {
    return vectors ? launch_gradients<T, true>(call, cuda_stream)
                   : launch_gradients<T, false>(call, cuda_stream);
  });
}

}  // namespace sparseloom::kernels::cuda
