// The producers: four warps, each of which fills every fourth stage by a table (mma_dds_table.cuh) that they
// write together.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/address.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/ld_global.cuh"
#include "kernels/cuda/ptx/opaque.cuh"
#include "kernels/cuda/ptx/sm90/mbarrier.cuh"
#include "kernels/cuda/ptx/sm90/tma.cuh"
#include "kernels/cuda/sm90/mma_dds_table.cuh"
#include "kernels/cuda/sm90/mma_dds_walk.cuh"

namespace sparseloom::kernels::cuda::mma_dds {

/// Finds the blocks of the lane's line in a tile's stages, ever later ones.
template <class T>
class Finder {
 public:
  explicit __device__ __forceinline__ Finder(const Table<T>& table)
      : table_(table), word_(table.word(0)), next_(table.first()) {}

  /// The stage's record, and where among the values its blocks are.
  __device__ __forceinline__ std::uint32_t find(const Params& params, int stage,
                                                std::int32_t (&block)[T::kPlaces]) {
    const std::uint32_t record = table_.record(params, stage);
    const int slab = stage >> table_.parts_log2();
#pragma unroll 1
    while (quad_ < slab / 4) {
      next_ += __popc(word_);
      word_ = table_.word(++quad_);
    }
    const std::int32_t first = next_ + __popc(word_ & ((1u << slab % 4 * 8) - 1));
#pragma unroll
    for (int place = 0; place < T::kPlaces; ++place) {
      const std::uint32_t bit = bit_of(place);
      block[place] = first + __popc(record & (bit - 1) & own_bits());
      if constexpr (T::kIsDx)
        block[place] = ptx::ld_global_if((record & bit) != 0, params.slot + block[place]);
    }
    return record;
  }

  /// Of the lane's line, among the bits of both lines of a record.
  static __device__ __forceinline__ std::uint32_t bit_of(int place) {
    return 1u << (2 * place) << threadIdx.x % 2;
  }

 private:
  static __device__ __forceinline__ std::uint32_t own_bits() { return 0x55u << threadIdx.x % 2; }

  const Table<T>& table_;
  int quad_ = 0;
  std::uint32_t word_;
  std::int32_t next_;  // of the line's blocks, the first from slab 4 * quad_ on
};

/// Copies a stage's blocks, `count` of them, into its slots. from, slots: this lane's 16 bytes of the first.
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

/// One warp of kProducers.
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
    if (!written) table.write(params, producer);
    const std::int32_t token = tiles.panel() * T::kTokens;
    const int group = tiles.group();
    tiles.advance(params);
    written = tiles.group() == group;
    if (!written) table.ask(params, tiles.group());
    const int stages = params.slabs << table.parts_log2();
    if (stage < stages) {
      Finder<T> finder(table);
      std::int32_t block[T::kPlaces];
      std::uint32_t next = finder.find(params, stage, block);
#pragma unroll 1
      while (true) {
        const std::uint32_t record = next;
        const int slot = static_cast<int>((record & T::kSlots) / T::kSlotBytes),
                  slab = stage >> table.parts_log2();
#pragma unroll
        for (int place = 0; place < T::kPlaces; ++place) {
          const std::uint32_t bit = Finder<T>::bit_of(place);
          if (record & bit)
            list[slot + __popc(record & (bit - 1))] = static_cast<std::uint32_t>(block[place]);
        }
        const int count = __shfl_sync(kWarp, slot + __popc(record & T::kStored), 31);
        stage += T::kProducers;
        // What dx reads for the next one comes while this one's copies are started.
        const bool more = stage < stages;
        if (more) next = finder.find(params, stage, block);
        ptx::mbarrier_wait(turn.empty(), turn.parity() ^ 1);
        if (lane % 2 == 0) ptx::st_shared_b32(turn.record(lane / 2), record);
        __syncwarp();  // record and list are there
        if (ptx::elect_lane()) {
          if (count == 0) {
            ptx::mbarrier_arrive(turn.full());
          } else {
            ptx::mbarrier_arrive_expect_tx(turn.full(), T::kXBytes);
            ptx::tma_load_2d(ring_address + turn.offset(), &params.x, slab * T::kSlab, token, turn.full(),
                             params.x_policy);
          }
        }
        copy_blocks<T>(from, list, count, slots + turn.offset());
        ptx::mbarrier_arrive_behind_copies(turn.full());
        __syncwarp();  // the list has been read
        turn.advance(T::kProducers);
        if (!more) break;
      }
    }
    stage -= stages;
  }
}

}  // namespace sparseloom::kernels::cuda::mma_dds
