// The consumers: two warpgroups, each with half of the tile's tokens and all of its lines (or the other way
// round: wgmma_dds_turned.cuh). Per slab they test in line which parts are present (a jump table cost 190
// cycles a part) and multiply those alone, so that what x holds under an absent block, NaN included, never
// reaches a sum.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>
#include <variant>

#include "kernels/cuda/ptx/address.cuh"
#include "kernels/cuda/ptx/ldmatrix.cuh"
#include "kernels/cuda/ptx/sm90/mbarrier.cuh"
#include "kernels/cuda/ptx/sm90/wgmma.cuh"
#include "kernels/cuda/sm90/wgmma_dds_split.cuh"
#include "kernels/cuda/sm90/wgmma_dds_store.cuh"
#include "kernels/cuda/sm90/wgmma_dds_tile.cuh"
#include "kernels/cuda/sm90/wgmma_dds_turned.cuh"
#include "kernels/cuda/sm90/wgmma_dds_walk.cuh"

namespace sparseloom::kernels::cuda::wgmma_dds {

// Each part is a group of its own, committed within the branch: a commit behind it, where the compiler cannot
// see a wgmma to mark, becomes an empty one (HGMMA.64x8x16) that takes its turn on the tensor cores, 3 to 4 %
// of blocks of 128.

/// sums += x parts^T over the slab's present parts. x and parts: shared addresses / 16.
template <class T>
__device__ __forceinline__ void multiply_slab(Sums<T>& sums, std::uint32_t x, std::uint32_t parts,
                                              std::uint32_t record) {
  ptx::wgmma_fence();
#pragma unroll
  for (int part = 0; part < T::kStageParts; ++part) {
#pragma unroll
    for (int line = 0; line < T::kLines; ++line) {
      if ((record & T::present(line, part)) == 0) continue;
      const std::uint32_t w = parts + (line * T::kStageParts + part) * (T::kPartBytes / 16);
#pragma unroll
      for (int step = 0; step < T::kSteps; ++step) {
#pragma unroll
        for (int block = 0; block < T::kTokenBlocks; ++block) {
          T::Element::template mma<T::kIsDx>(sums[block][line],
                                             T::kDescriptorX | (x + x_offset<T>(part, step, block)),
                                             T::kDescriptorPart | (w + step * (T::kStepBytes / 16)));
        }
      }
      ptx::wgmma_commit();
    }
  }
}

/// x of a stage as wgmma takes it from registers.
template <class T>
using XRegisters = std::uint32_t[T::kStageParts][T::kTokenBlocks][T::kSteps][4];

/// The same with x in registers. rows: shared address of the slab's row that this lane reads for ldmatrix, of
/// the first 16.
template <class T>
__device__ __forceinline__ void multiply_slab_from_registers(Sums<T>& sums, XRegisters<T>& x,
                                                             std::uint32_t rows, std::uint32_t parts,
                                                             std::uint32_t record) {
  // A part at a time, the second's way there lies beside the first's products, and is saved where no line
  // stores that part: dx 3 to 5 % faster from density .2 on, forward, whose products begin sooner, 2 % slower
  // at .5.
  constexpr bool kByParts = T::kIsDx;
  const int lane = threadIdx.x % 32, swizzle = T::kRowBytes == 128 ? lane % 8 : lane / 2 % 4;
  const auto load = [&](int part) {
#pragma unroll
    for (int block = 0; block < T::kTokenBlocks; ++block) {
#pragma unroll
      for (int step = 0; step < T::kSteps; ++step) {
        const int slab = part / T::kParts, chunk = (part % T::kParts * T::kSteps + step) * 2 + lane / 16;
        ptx::ldmatrix_x4(x[part][block][step],
                         rows + slab * T::kSlabBytes + block * 64 * T::kRowBytes + (chunk ^ swizzle) * 16);
      }
    }
  };
  if constexpr (!kByParts) {
#pragma unroll
    for (int part = 0; part < T::kStageParts; ++part) load(part);
    ptx::wgmma_fence();
  }
#pragma unroll
  for (int part = 0; part < T::kStageParts; ++part) {
    if constexpr (kByParts) {
      if ((record & T::all_present(part)) == 0) continue;
      load(part);
      ptx::wgmma_fence();
    }
#pragma unroll
    for (int line = 0; line < T::kLines; ++line) {
      if ((record & T::present(line, part)) == 0) continue;
      const std::uint32_t w = parts + (line * T::kStageParts + part) * (T::kPartBytes / 16);
#pragma unroll
      for (int step = 0; step < T::kSteps; ++step) {
#pragma unroll
        for (int block = 0; block < T::kTokenBlocks; ++block) {
          T::Element::template mma<T::kIsDx>(sums[block][line], x[part][block][step],
                                             T::kDescriptorPart | (w + step * (T::kStepBytes / 16)));
        }
      }
      ptx::wgmma_commit();
    }
  }
}

/// The same where the tensor cores' sums are added up in registers: those of one line at a time, in as many
/// registers as the kernel has left. The other warpgroup multiplies meanwhile. The last of them are added
/// once the stage has gone back to the producers.
template <class T>
struct PromotedSlab {
  static constexpr int kAtOnce = T::kSlice * T::kTokenBlocks <= 128 ? T::kTokenBlocks : 1;  // 64 registers
  static constexpr int kChunk = kAtOnce * T::kSlice / 2;
  static constexpr int kLeft = T::kBlocksPerSm == 1 ? 32 : 0;  // to be added later: 64 had no registers
  float sum[kAtOnce][T::kSlice / 2];

  __device__ __forceinline__ void multiply(Sums<T>& sums, std::uint32_t x, std::uint32_t parts,
                                           std::uint32_t record) {
    constexpr std::uint32_t kNextX = x_offset<T>(1, 0, 0), kNextPart = T::kPartBytes / 16;
#pragma unroll
    for (int line = 0; line < T::kLines; ++line) {
      const std::uint32_t w = parts + line * T::kStageParts * kNextPart;
      const bool low = record & T::present(line, 0),
                 high = T::kStageParts > 1 && (record & T::present(line, 1));
      if constexpr (T::kSlice < 128) {
        // The first part present by address, the second behind a branch: a branch around each cost 300
        // spilled registers.
        if (low || high)
          multiply_line(sums, line, x, low ? x : x + kNextX, low ? w : w + kNextPart, w + kNextPart,
                        low && high);
      } else {  // one after the other, for the same reason
        if (low) {
          multiply_line(sums, line, x, x, w, w, false);
          if (T::kStageParts > 1) add_last(sums);
        }
        if (high) multiply_line(sums, line, x, x + kNextX, w + kNextPart, w, false);
      }
    }
  }

  /// What multiply left.
  __device__ __forceinline__ void add_to(Sums<T>& sums, std::uint32_t record) {
    constexpr int kLast = T::kLines - 1;
    bool left = record & T::present(kLast, T::kStageParts - 1);
    if (T::kSlice < 128 && T::kStageParts > 1) left = left || (record & T::present(kLast, 0));
    if (left) add_last(sums);
  }

 private:
  __device__ __forceinline__ void multiply_line(Sums<T>& sums, int line, std::uint32_t x,
                                                std::uint32_t first_x, std::uint32_t first_w,
                                                std::uint32_t second_w, bool both) {
#pragma unroll
    for (int first = 0; first < T::kTokenBlocks; first += kAtOnce) {
      const auto run = [&](std::uint32_t from_x, std::uint32_t from_w, bool add) {
#pragma unroll
        for (int step = 0; step < T::kSteps; ++step) {
#pragma unroll
          for (int block = 0; block < kAtOnce; ++block) {
            T::Element::mma(sum[block], T::kDescriptorX | (from_x + x_offset<T>(0, step, first + block)),
                            T::kDescriptorPart | (from_w + step * (T::kStepBytes / 16)), add || step > 0);
          }
        }
        ptx::wgmma_commit();
      };
      ptx::wgmma_fence();
      run(first_x, first_w, false);
      if (both) run(x + x_offset<T>(1, 0, 0), second_w, true);
      ptx::wgmma_wait<0>();
      const bool last = line + 1 == T::kLines && first + kAtOnce == T::kTokenBlocks;
      add(sums, line, first, 0, last ? kChunk - kLeft : kChunk);
    }
  }

  /// sums += those of chunk first from number `from` on.
  __device__ __forceinline__ void add(Sums<T>& sums, int line, int first, int from, int to) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (i < from || i >= to) continue;
      float& own = sum[i / (T::kSlice / 2)][i % (T::kSlice / 2)];
      ptx::pin(own);
      sums[first + i / (T::kSlice / 2)][line][i % (T::kSlice / 2)] += own;
    }
  }

  __device__ __forceinline__ void add_last(Sums<T>& sums) {
    add(sums, T::kLines - 1, T::kTokenBlocks - kAtOnce, kChunk - kLeft, kChunk);
  }
};

/// Of products whose sums are added up in registers: one slab's.
template <class T>
using SlabOf =
    std::conditional_t<T::Element::kSplit, std::type_identity<SplitSlab<T>>,
                       std::conditional_t<T::Element::kPromoted, std::type_identity<PromotedSlab<T>>,
                                          std::type_identity<std::monostate>>>::type;

/// Of the ring, in the order of the producer's records.
template <class T>
struct Stage {
  unsigned index, parity;
  explicit __device__ __forceinline__ Stage(unsigned turn)
      : index(turn % T::kStages), parity(turn / T::kStages % 2) {}
};

/// One of the two warpgroups.
template <class T>
__device__ __forceinline__ void consume(const Params& params, SharedStorage<T>& shared, int warpgroup) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const std::uint32_t full = ptx::shared_address(shared.full), empty = ptx::shared_address(shared.empty),
                      records = ptx::shared_address(shared.record);
  const std::uint32_t ring = ptx::shared_address(shared.ring) / 16;
  const std::uint32_t own_rows =
      T::kTurned ? 0 : warpgroup * (T::kTokens / T::kConsumers) * T::kRowBytes / 16;
  [[maybe_unused]] const std::uint32_t lane_row = (warp * 16 + lane % 16) * T::kRowBytes;
  // Records are read by the lane that hands the stage back, which orders the read before the producer's next
  // write. By the reduction the others have them, and the compiler knows that branches on them are uniform.
  const auto read = [&](std::uint32_t record) {
    return lane == 0 ? ptx::ld_shared_b32(records + record) : 0;
  };
  const auto share = [](std::uint32_t record) { return __reduce_or_sync(0xffffffff, record); };

  unsigned turn = 0;
  std::conditional_t<T::kTurned, TurnedStore<T>, WarpStore<T>> store(shared, warpgroup);
#pragma unroll 1
  for (Tiles tiles(params); tiles.any(params); tiles.advance(params)) {
    const Place place = tiles.place<T>();
    if constexpr (!T::kStoresLate) store.begin(params, place);
    Sums<T> sums = {};
    Stage<T> stage(turn);
    ptx::mbarrier_wait(full + stage.index * 8, stage.parity);
    std::uint32_t record = share(read(stage.index * 8)), next;
    // Of one stage. beside: what is done while the tensor cores work.
    const auto multiply = [&](auto beside) {
      const std::uint32_t at = ring + stage.index * (T::kStageBytes / 16);
      next = read(stage.index * 8 + 4);  // there when this stage is multiplied
      [[maybe_unused]] const auto& origin = shared.origin[T::Element::kSplit ? stage.index : 0];
      [[maybe_unused]] SlabOf<T> slab;
      [[maybe_unused]] std::conditional_t<T::kXInRegisters, XRegisters<T>, std::monostate> x;
      if constexpr (T::Element::kSplit) {
        slab.multiply(at + own_rows, at + T::kXBytes / 16, record);
      } else if constexpr (T::Element::kPromoted) {
        slab.multiply(sums, at + own_rows, at + T::kXBytes / 16, record);
      } else if constexpr (T::kXInRegisters) {
        multiply_slab_from_registers<T>(sums, x, (at + own_rows) * 16 + lane_row, at + T::kXBytes / 16,
                                        record);
      } else if constexpr (T::kTurned) {
        multiply_slab_turned<T>(sums, at, at + T::kXBytes / 16, record, warpgroup);
      } else {
        multiply_slab<T>(sums, at + own_rows, at + T::kXBytes / 16, record);
      }
      beside();
      ptx::wgmma_wait<0>();
      if constexpr (T::kXInRegisters) ptx::keep(x);
      if constexpr (T::Element::kSplit) slab.add_specials(params, place, sums, at + own_rows, record, origin);
      __syncwarp();  // all lanes have read the stage
      if (lane == 0) ptx::mbarrier_arrive(empty + stage.index * 8);
      if constexpr (T::Element::kSplit || T::Element::kPromoted) slab.add_to(sums, record);
      ++turn;
    };
    const auto last = [&] { return (record & T::kLast) != 0; };
    const auto next_stage = [&] {
      stage = Stage<T>(turn);
      ptx::mbarrier_wait(full + stage.index * 8, stage.parity);
      record = share(next);
    };
    // Branches on the record alone: of a flag of its own ptxas does not know that all lanes agree, and keeps
    // addresses for each.
    const auto multiply_rest = [&] {
#pragma unroll 1
      while (true) {
        multiply([] {});
        if (last()) return;
        next_stage();
      }
    };
    if constexpr (T::kStoresLate) {
      // Beside each of the first stages a box of the tile before leaves; beside the first, what the tile's
      // end needs is read.
      const auto multiply_from = [&](auto self, auto n) {
        if constexpr (n.value == TurnedStore<T>::kBoxes) {
          multiply_rest();
        } else {
          multiply([&] {
            store.template put_kept<n.value>(params);
            if constexpr (n.value == 0) store.begin(params, place);
          });
          if (last()) {
            store.template put_all_kept<n.value + 1>(params);
            return;
          }
          next_stage();
          self(self, std::integral_constant<int, n.value + 1>{});
        }
      };
      multiply_from(multiply_from, std::integral_constant<int, 0>{});
    } else {
      multiply_rest();
    }
#pragma unroll
    for (auto& block : sums) {
#pragma unroll
      for (auto& slice : block) ptx::pin(slice);
    }
    store.end(params, place, sums);
  }
  if constexpr (T::kStoresLate) store.template put_all_kept<0>(params);
  if (ptx::elect_lane()) ptx::bulk_wait_read<0>();  // shared memory goes with the thread block
}

}  // namespace sparseloom::kernels::cuda::wgmma_dds
