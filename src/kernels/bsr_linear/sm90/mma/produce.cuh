// The producers of sm90_mma: four warps, each of which fills every fourth stage. They follow a table of the
// stored blocks (table.cuh), which they write together.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/mma/table.cuh"
#include "kernels/bsr_linear/sm90/mma/walk.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/cp_async.cuh"
#include "kernels/shared/ptx/ld.cuh"
#include "kernels/shared/ptx/opaque.cuh"
#include "kernels/shared/ptx/sm90/mbarrier.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"

namespace sparseloom::kernels::cuda::sm90_mma {

/// Finds the blocks of the lane's block row in a tile's stages. Calls must ask for ascending stages.
template <class T>
class Finder {
 public:
  explicit __device__ __forceinline__ Finder(const Table<T>& table)
      : table_(table), word_(table.word(0)), next_(table.first()) {}

  /// Returns the stage descriptor, and writes to `block` the slots of the stage's blocks in values.
  __device__ __forceinline__ std::uint32_t find(const Params& params, int stage,
                                                std::int32_t (&block)[T::kPlaces]) {
    const std::uint32_t record = table_.record(params, stage);
    const int k_tile = stage >> table_.subsets_log2();
#pragma unroll 1
    while (quad_ < k_tile / 4) {
      next_ += __popc(word_);
      word_ = table_.word(++quad_);
    }
    const std::int32_t first = next_ + __popc(word_ & ((1u << k_tile % 4 * 8) - 1));
#pragma unroll
    for (int place = 0; place < T::kPlaces; ++place) {
      const std::uint32_t bit = bit_of(place);
      block[place] = first + __popc(record & (bit - 1) & own_bits());
      if constexpr (T::kIsDx)
        block[place] = ptx::ld_global_if((record & bit) != 0, params.slot + block[place]);
    }
    return record;
  }

  /// The bit of a descriptor that says whether the lane's block row, one of the warp's two, stores `place`.
  static __device__ __forceinline__ std::uint32_t bit_of(int place) {
    return 1u << (2 * place) << threadIdx.x % 2;
  }

 private:
  static __device__ __forceinline__ std::uint32_t own_bits() { return 0x55u << threadIdx.x % 2; }

  const Table<T>& table_;
  int quad_ = 0;
  std::uint32_t word_;
  std::int32_t next_;  // index of the block row's first block at or after K tile 4 * quad_
};

/// Copies the `count` blocks of a stage into its slots. `from` and `slots` are the addresses of this lane's
/// 16 bytes in the first block of values and in the first slot.
template <class T>
__device__ __forceinline__ void copy_blocks(const char* from, const std::uint32_t* blocks, int count,
                                            std::uint32_t slots) {
  const auto* const fours = reinterpret_cast<const uint4*>(blocks);
#pragma unroll 1
  for (int i = 0; i < count; i += 8) {
    const uint4 low = fours[i / 4], high = fours[i / 4 + 1];
    const std::uint32_t block[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const auto copy = [&](int j) {
      ptx::cp_async_cg(slots + j * T::kSlotBytes, from + std::uint64_t{block[j]} * T::kSlotBytes, 16,
                       ptx::L2Policy::evict_last);
    };
    if (i + 8 <= count) {
#pragma unroll
      for (int j = 0; j < 8; ++j) copy(j);
    } else {
#pragma unroll
      for (int j = 0; j < 7; ++j) {
        if (i + j < count) copy(j);
      }
    }
    slots += 8 * T::kSlotBytes;
  }
}

/// The loop of one producer warp; there are kProducers.
template <class T>
__device__ __forceinline__ void produce(const Params& params, SharedFront<T>& front, std::byte* ring,
                                        int producer) {
  const int lane = threadIdx.x % 32;
  const std::uint32_t ring_address = ptx::shared_address(ring);
  const char* from = reinterpret_cast<const char*>(params.values) + lane * 16;
  std::uint32_t slots = ring_address + T::kXBytes + (lane ^ lane / 8 % 2) * 16;
  ptx::opaque(from), ptx::opaque(slots);
  std::uint32_t* const list = front.blocks[producer];
  Turn<T> turn(params, front);
  Table<T> table(params, ring + turn.ring_bytes());
  turn.advance(producer);
  Tiles tiles(params);
  table.ask(params, tiles.group());
  bool written = false;
  int stage = producer;
#pragma unroll 1
  while (tiles.any(params)) {
    // Write the table of this tile's group, unless the previous tile had the same group.
    if (!written) table.write(params, producer);
    const std::int32_t token = tiles.m_tile() * T::kTokens;
    const int group = tiles.group();
    tiles.advance(params);
    written = tiles.group() == group;
    if (!written) table.ask(params, tiles.group());  // prefetch for the next table
    const int stages = params.k_tiles << table.subsets_log2();
    if (stage < stages) {
      Finder<T> finder(table);
      std::int32_t block[T::kPlaces];
      std::uint32_t next = finder.find(params, stage, block);
#pragma unroll 1
      while (true) {
        const std::uint32_t record = next;
        const int slot = static_cast<int>((record & T::kSlots) / T::kSlotBytes),
                  k_tile = stage >> table.subsets_log2();
        // List the stage's blocks in the order of the slots.
#pragma unroll
        for (int place = 0; place < T::kPlaces; ++place) {
          const std::uint32_t bit = Finder<T>::bit_of(place);
          if (record & bit)
            list[slot + __popc(record & (bit - 1))] = static_cast<std::uint32_t>(block[place]);
        }
        const int count = __shfl_sync(kWarp, slot + __popc(record & T::kStored), 31);
        stage += T::kProducers;
        // Look up the next stage now, so that dx's loads overlap this stage's copies.
        const bool more = stage < stages;
        if (more) next = finder.find(params, stage, block);
        // Wait until the consumers have released the stage, then write its descriptors.
        ptx::mbarrier_wait(turn.empty(), turn.parity() ^ 1);
        if (lane % 2 == 0) ptx::st_shared_b32(turn.record(lane / 2), record);
        __syncwarp();  // all lanes have written descriptors and list
        // Issue TMA for X, unless the stage has no blocks; then cp.async for the blocks.
        if (ptx::elect_lane()) {
          if (count == 0) {
            ptx::mbarrier_arrive(turn.full());
          } else {
            ptx::mbarrier_arrive_expect_tx(turn.full(), T::kXBytes);
            ptx::tma_load_2d(ring_address + turn.offset(), &params.x, k_tile * T::kKTile, token, turn.full(),
                             params.x_policy);
          }
        }
        copy_blocks<T>(from, list, count, slots + turn.offset());
        ptx::mbarrier_arrive_behind_copies(turn.full());
        __syncwarp();  // all lanes have read the list
        turn.advance(T::kProducers);
        if (!more) break;
      }
    }
    stage -= stages;
  }
}

}  // namespace sparseloom::kernels::cuda::sm90_mma
