// The table, in shared memory, of the blocks that each stage of a tile holds. It is built once for all tiles
// of a group of block rows: when the producers counted and ordered the blocks of 32 block rows for each
// stage, the consumers waited for them at density .05 (measured).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/mma/tile.cuh"
#include "kernels/shared/ptx/ld.cuh"
#include "kernels/shared/ptx/sm90/named_barrier.cuh"

namespace sparseloom::kernels::cuda::sm90_mma {

constexpr unsigned kWarp = 0xffffffff;

/// Describes the stages of a tile. All producers write it together, once for each group of block rows that
/// the thread block visits; each reads it for its own stages. Each method is called by whole warps.
template <class T>
class Table {
 public:
  __device__ __forceinline__ Table(const Params& params, std::byte* bytes)
      : quads_((params.k_tiles + 3) / 4),
        words_(reinterpret_cast<std::uint32_t*>(bytes)),
        records_(words_ + quads_ * T::kBlockRows),
        most_(records_ + params.k_tiles * T::kConsumers) {}

  /// Starts the loads of the list bounds of `group`; the next write() uses them.
  __device__ __forceinline__ void ask(const Params& params, int group) {
    const int block_row = group * T::kBlockRows + within(),
              own = group * T::kBlockRows + static_cast<int>(threadIdx.x % 32);
    begin_ = ptx::ld_global_if(block_row < params.block_rows, params.list_begin + block_row);
    end_ = ptx::ld_global_if(block_row < params.block_rows, params.list_end + block_row);
    next_first_ = ptx::ld_global_if(own < params.block_rows, params.list_begin + own);
  }

  /// Writes the table of the group passed to ask().
  __device__ __forceinline__ void write(const Params& params, int producer) {
    // Clear the words, once all producers have finished with the previous table.
    ptx::named_barrier_sync<1, kThreads>();
    for (int i = threadIdx.x % kThreads; i < quads_ * T::kBlockRows; i += kThreads) words_[i] = 0;
    ptx::named_barrier_sync<1, kThreads>();
    // Set a bit for each stored block. Eight independent loads are in flight at a time.
#pragma unroll 1
    for (std::int32_t i = begin_ + static_cast<int>(threadIdx.x % kEach); i < end_; i += 8 * kEach) {
      std::int32_t along[8];
#pragma unroll
      for (int j = 0; j < 8; ++j)
        along[j] = ptx::ld_global_if(i + j * kEach < end_, params.along + i + j * kEach);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (i + j * kEach < end_)
          atomicOr(&words_[along[j] / 16 * T::kBlockRows + within()],
                   1u << (along[j] % 16 * 2 + within() % 2));
      }
    }
    ptx::named_barrier_sync<1, kThreads>();
    // Write the descriptors as if each K tile were one stage, and find the most blocks of a K tile.
    first_ = next_first_;
    subsets_log2_ = 0;
    const std::uint32_t own_most = write_records(params, producer);
    if (threadIdx.x % 32 == 31) most_[producer] = own_most;
    ptx::named_barrier_sync<1, kThreads>();
    // If a stage has too few slots, each K tile takes several stages.
    std::uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < T::kProducers; ++i) most = max(most, most_[i]);
    if (most > static_cast<std::uint32_t>(params.slots)) choose_subsets(params);
  }

  /// log2 of the stages (subsets) of a K tile: the fewest that the slots allow for the fullest K tile.
  __device__ __forceinline__ int subsets_log2() const { return subsets_log2_; }
  /// Index of the first block of the lane's block row.
  __device__ __forceinline__ std::int32_t first() const { return first_; }
  /// The bytes of the lane's block row for the four K tiles from 4 * quad on.
  __device__ __forceinline__ std::uint32_t word(int quad) const {
    return words_[quad * T::kBlockRows + threadIdx.x % 32];
  }
  /// The stage descriptor for the consumer warp that multiplies the lane's block row.
  __device__ __forceinline__ std::uint32_t record(const Params& params, int stage) const {
    return subsets_log2_ == 0 ? records_[stage * T::kConsumers + threadIdx.x % 32 / 2]
                              : find_record(params, stage);
  }

 private:
  static constexpr int kThreads = T::kProducers * 32,
                       kEach = kThreads / T::kBlockRows;  // threads that read one block row's list
  static __device__ __forceinline__ int within() { return static_cast<int>(threadIdx.x % kThreads) / kEach; }

  /// The byte of the lane's block row in `stage`: zero if the stage is for another subset of the block rows.
  __device__ __forceinline__ std::uint32_t stored(int stage) const {
    const int k_tile = stage >> subsets_log2_, subset = stage & ((1 << subsets_log2_) - 1);
    return static_cast<int>(threadIdx.x % 32) >> (5 - subsets_log2_) == subset
               ? word(k_tile / 4) >> k_tile % 4 * 8 & 0xff
               : 0;
  }

  /// Writes the descriptors of every fourth quad of K tiles, if a K tile is one stage. Returns to lane 31 the
  /// most blocks that one of these K tiles stores.
  __device__ __forceinline__ std::uint32_t write_records(const Params& params, int producer) {
    const int lane = threadIdx.x % 32;
    std::uint32_t most = 0;
#pragma unroll 2
    for (int quad = producer; quad < quads_; quad += T::kProducers) {
      // Join the bytes of the two block rows of a consumer warp.
      std::uint32_t here = word(quad), next = quad + 1 < quads_ ? word(quad + 1) : 0;
      here |= __shfl_xor_sync(kWarp, here, 1), next |= __shfl_xor_sync(kWarp, next, 1);
      const std::uint32_t count = count_by_byte(here);
      std::uint32_t up_to = count;  // blocks up to and including this consumer warp, for four K tiles
#pragma unroll
      for (int by = 2; by < 32; by *= 2) {
        const std::uint32_t before = __shfl_up_sync(kWarp, up_to, by);
        if (lane >= by) up_to += before;
      }
      most = __vmaxu4(most, up_to);
      // Compose the four descriptors: own bits, offset of the first slot, bits of the next stage.
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int k_tile = quad * 4 + i;
        std::uint32_t record = (here >> (8 * i) & 0xff) |
                               ((up_to - count) >> (8 * i) & 0xff) * T::kSlotBytes |
                               (i < 3 ? here >> (8 * i + 8) & 0xff : next & 0xff) << T::kNextShift;
        if (k_tile + 1 == params.k_tiles) record |= T::kLast;
        if (k_tile + 2 == params.k_tiles) record |= T::kLast << T::kNextShift;
        if (k_tile < params.k_tiles && lane % 2 == 0) records_[k_tile * T::kConsumers + lane / 2] = record;
      }
    }
    return max_of_bytes(most);
  }

  static __device__ __forceinline__ std::uint32_t count_by_byte(std::uint32_t bits) {
    bits = (bits & 0x55555555) + (bits >> 1 & 0x55555555);
    bits = (bits & 0x33333333) + (bits >> 2 & 0x33333333);
    return (bits & 0x0f0f0f0f) + (bits >> 4 & 0x0f0f0f0f);
  }
  static __device__ __forceinline__ std::uint32_t max_of_bytes(std::uint32_t bytes) {
    return max(max(bytes & 0xff, bytes >> 8 & 0xff), max(bytes >> 16 & 0xff, bytes >> 24));
  }

  /// The descriptor of `stage`, computed from the words, if a K tile takes several stages.
  __device__ __forceinline__ std::uint32_t find_record(const Params& params, int stage) const {
    const int stages = params.k_tiles << subsets_log2_;
    const std::uint32_t own = stored(stage), warps_before = (1u << (threadIdx.x % 32 & ~1u)) - 1;
    std::uint32_t slots = 0;
#pragma unroll
    for (int place = 0; place < T::kPlaces; ++place)
      slots += __popc(__ballot_sync(kWarp, own >> (2 * place) & 3) & warps_before) * T::kSlotBytes;
    std::uint32_t here = own, next = stage + 1 < stages ? stored(stage + 1) : 0;
    here |= __shfl_xor_sync(kWarp, here, 1), next |= __shfl_xor_sync(kWarp, next, 1);
    if (stage + 1 == stages) here |= T::kLast;
    if (stage + 2 == stages) next |= T::kLast;
    return here | slots | next << T::kNextShift;
  }

  /// Sets subsets_log2_: the number of subsets of the block rows such that each subset's blocks fit the
  /// slots.
  __device__ __forceinline__ void choose_subsets(const Params& params) {
    constexpr int kLevels = 4;  // subsets of 2, 4, 8 and 16 block rows
    std::uint32_t most[kLevels] = {};
#pragma unroll 1
    for (int quad = 0; quad < quads_; ++quad) {
      std::uint32_t count = count_by_byte(word(quad));
#pragma unroll
      for (int level = 0; level < kLevels; ++level) {
        count += __shfl_xor_sync(kWarp, count, 1 << level);
        most[level] = __vmaxu4(most[level], count);
      }
    }
    subsets_log2_ = kLevels;
#pragma unroll
    for (int level = 1; level < kLevels; ++level) {
      if (__reduce_max_sync(kWarp, max_of_bytes(most[level])) <= static_cast<unsigned>(params.slots))
        subsets_log2_ = kLevels - level;
    }
  }

  const int quads_;
  std::uint32_t *words_, *records_,
      *most_;  // [quads_][kBlockRows]; [K tiles][kConsumers], used if a K tile is one stage; [kProducers]
  int subsets_log2_ = 0;
  std::int32_t first_ = 0, next_first_ = 0, begin_ = 0, end_ = 0;
};

}  // namespace sparseloom::kernels::cuda::sm90_mma
