// The consumers: two warpgroups, each with half of the tile's tokens and all of its block rows (swap-AB
// exchanges the two: swap_ab.cuh). For each K tile they test which parts are present, in code that is
// unrolled inline (a jump table cost 190 cycles per part), and multiply only those. So values of x under an
// absent block, NaN included, never reach a sum.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>
#include <variant>

#include "kernels/bsr_linear/sm90/wgmma/forward/store.cuh"
#include "kernels/bsr_linear/sm90/wgmma/forward/swap_ab.cuh"
#include "kernels/bsr_linear/sm90/wgmma/forward/tile.cuh"
#include "kernels/bsr_linear/sm90/wgmma/forward/walk.cuh"
#include "kernels/bsr_linear/sm90/wgmma/split_bf16x3/kernel.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/ldmatrix.cuh"
#include "kernels/shared/ptx/sm90/wgmma.cuh"

namespace sparseloom::kernels::cuda::wgmma::forward {

// Each part is a wgmma group of its own, which is committed within the part's branch. A commit after the
// branch, where the compiler sees no wgmma to mark, becomes an empty wgmma (HGMMA.64x8x16) that takes its
// turn on the tensor cores; that measured slower.

/// sums += x parts^T over the stage's parts that are present. x and parts are shared addresses / 16.
template <class T>
__device__ __forceinline__ void multiply_k_tile(Sums<T>& sums, std::uint32_t x, std::uint32_t parts,
                                                std::uint32_t record) {
  ptx::wgmma_fence();
#pragma unroll
  for (int part = 0; part < T::kStageParts; ++part) {
#pragma unroll
    for (int block_row = 0; block_row < T::kBlockRows; ++block_row) {
      if ((record & T::present(block_row, part)) == 0) continue;
      const std::uint32_t w = parts + (block_row * T::kStageParts + part) * (T::kPartBytes / 16);
#pragma unroll
      for (int step = 0; step < T::kSteps; ++step) {
#pragma unroll
        for (int block = 0; block < T::kTokenBlocks; ++block) {
          T::Element::template mma<T::kIsDx>(sums[block][block_row],
                                             T::kDescriptorX | (x + x_offset<T>(part, step, block)),
                                             T::kDescriptorPart | (w + step * (T::kStepBytes / 16)));
        }
      }
      ptx::wgmma_commit();
    }
  }
}

/// The fragment of x that wgmma reads from registers.
template <class T>
using XRegisters = std::uint32_t[T::kStageParts][T::kTokenBlocks][T::kSteps][4];

/// Multiplies as above with x in registers. `rows` is the shared address of the row, among the K tile's first
/// 16, that this lane passes to ldmatrix.
template <class T>
__device__ __forceinline__ void multiply_k_tile_from_registers(Sums<T>& sums, XRegisters<T>& x,
                                                               std::uint32_t rows, std::uint32_t parts,
                                                               std::uint32_t record) {
  // One part at a time: the second part's x is loaded while the first part is multiplied, and is skipped
  // where no block row stores that part. This measured faster in dx from density .2 on, and slower in forward
  // at .5, where products begin sooner without it.
  constexpr bool kByParts = T::kIsDx;
  const int lane = threadIdx.x % 32, swizzle = T::kRowBytes == 128 ? lane % 8 : lane / 2 % 4;
  const auto load = [&](int part) {
#pragma unroll
    for (int block = 0; block < T::kTokenBlocks; ++block) {
#pragma unroll
      for (int step = 0; step < T::kSteps; ++step) {
        const int k_tile = part / T::kParts, chunk = (part % T::kParts * T::kSteps + step) * 2 + lane / 16;
        ptx::ldmatrix_x4(x[part][block][step],
                         rows + k_tile * T::kKTileBytes + block * 64 * T::kRowBytes + (chunk ^ swizzle) * 16);
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
    for (int block_row = 0; block_row < T::kBlockRows; ++block_row) {
      if ((record & T::present(block_row, part)) == 0) continue;
      const std::uint32_t w = parts + (block_row * T::kStageParts + part) * (T::kPartBytes / 16);
#pragma unroll
      for (int step = 0; step < T::kSteps; ++step) {
#pragma unroll
        for (int block = 0; block < T::kTokenBlocks; ++block) {
          T::Element::template mma<T::kIsDx>(sums[block][block_row], x[part][block][step],
                                             T::kDescriptorPart | (w + step * (T::kStepBytes / 16)));
        }
      }
      ptx::wgmma_commit();
    }
  }
}

/// The products of one K tile where fp32 registers accumulate the tensor cores' sums (kPromoted): one block
/// row at a time, in the registers that the kernel has left, while the other warpgroup uses the tensor cores.
/// The last sums are added after the stage is released.
template <class T>
struct PromotedKTile {
  static constexpr int kAtOnce = T::kSlice * T::kTokenBlocks <= 128 ? T::kTokenBlocks : 1;  // 64 registers
  static constexpr int kChunk = kAtOnce * T::kSlice / 2;
  static constexpr int kLeft = T::kBlocksPerSm == 1 ? 32 : 0;  // sums per thread added later; 64 would spill
  float sum[kAtOnce][T::kSlice / 2];

  __device__ __forceinline__ void multiply(Sums<T>& sums, std::uint32_t x, std::uint32_t parts,
                                           std::uint32_t record) {
    constexpr std::uint32_t kNextX = x_offset<T>(1, 0, 0), kNextPart = T::kPartBytes / 16;
#pragma unroll
    for (int block_row = 0; block_row < T::kBlockRows; ++block_row) {
      const std::uint32_t w = parts + block_row * T::kStageParts * kNextPart;
      const bool low = record & T::present(block_row, 0),
                 high = T::kStageParts > 1 && (record & T::present(block_row, 1));
      if constexpr (T::kSlice < 128) {
        // An address selects the first part that is present, and one branch guards the second part: a branch
        // around each part cost 300 spilled registers.
        if (low || high)
          multiply_block_row(sums, block_row, x, low ? x : x + kNextX, low ? w : w + kNextPart, w + kNextPart,
                             low && high);
      } else {  // one part after the other: two branches would spill too
        if (low) {
          multiply_block_row(sums, block_row, x, x, w, w, false);
          if (T::kStageParts > 1) add_last(sums);
        }
        if (high) multiply_block_row(sums, block_row, x, x + kNextX, w + kNextPart, w, false);
      }
    }
  }

  /// Adds the sums that multiply() kept for later.
  __device__ __forceinline__ void add_to(Sums<T>& sums, std::uint32_t record) {
    constexpr int kLast = T::kBlockRows - 1;
    bool left = record & T::present(kLast, T::kStageParts - 1);
    if (T::kSlice < 128 && T::kStageParts > 1) left = left || (record & T::present(kLast, 0));
    if (left) add_last(sums);
  }

 private:
  /// sums of one block row += the products of its parts.
  __device__ __forceinline__ void multiply_block_row(Sums<T>& sums, int block_row, std::uint32_t x,
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
      const bool last = block_row + 1 == T::kBlockRows && first + kAtOnce == T::kTokenBlocks;
      add(sums, block_row, first, 0, last ? kChunk - kLeft : kChunk);
    }
  }

  /// Adds sums `from` to `to` of the chunk; `first` is the chunk's first block of 64 tokens.
  __device__ __forceinline__ void add(Sums<T>& sums, int block_row, int first, int from, int to) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (i < from || i >= to) continue;
      float& own = sum[i / (T::kSlice / 2)][i % (T::kSlice / 2)];
      ptx::pin(own);
      sums[first + i / (T::kSlice / 2)][block_row][i % (T::kSlice / 2)] += own;
    }
  }

  __device__ __forceinline__ void add_last(Sums<T>& sums) {
    add(sums, T::kBlockRows - 1, T::kTokenBlocks - kAtOnce, kChunk - kLeft, kChunk);
  }
};

/// The state of one K tile where registers accumulate its products; otherwise empty.
template <class T>
using KTileOf =
    std::conditional_t<T::Element::kBf16x3, std::type_identity<Bf16x3KTile<T>>,
                       std::conditional_t<T::Element::kPromoted, std::type_identity<PromotedKTile<T>>,
                                          std::type_identity<std::monostate>>>::type;

/// The loop of one of the two warpgroups.
template <class T>
__device__ __forceinline__ void consume(const Params& params, SharedStorage<T>& shared, int warpgroup) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const Pipeline pipeline(shared.full, shared.empty);
  const std::uint32_t records = ptx::shared_address(shared.record);
  const std::uint32_t ring = ptx::shared_address(shared.ring) / 16;
  const std::uint32_t own_rows =
      T::kSwapAB ? 0 : warpgroup * (T::kTokens / T::kConsumers) * T::kRowBytes / 16;
  [[maybe_unused]] const std::uint32_t lane_row = (warp * 16 + lane % 16) * T::kRowBytes;
  // Lane 0 reads a stage's descriptor and also releases the stage, which orders the read before the
  // producer's next write. The reduction broadcasts the descriptor and tells the compiler that branches on it
  // are uniform.
  const auto read = [&](std::uint32_t record) {
    return lane == 0 ? ptx::ld_shared_b32(records + record) : 0;
  };
  const auto share = [](std::uint32_t record) { return __reduce_or_sync(0xffffffff, record); };

  unsigned turn = 0;
  std::conditional_t<T::kSwapAB, SwapABStore<T>, WarpStore<T>> store(shared, warpgroup);
#pragma unroll 1
  for (Tiles tiles(params); tiles.any(params); tiles.advance(params)) {
    const Place place = tiles.place<T>();
    if constexpr (!T::kDeferredStore) store.begin(params, place);
    Sums<T> sums = {};
    StageOf<T::kStages> stage(turn);  // counted over all tiles, in the order in which they are filled
    // Wait for the tile's first stage and read its descriptor.
    pipeline.wait(stage.index, stage.parity);
    std::uint32_t record = share(read(stage.index * 8)), next;
    // Multiplies one stage; beside() runs while the tensor cores work.
    const auto multiply = [&](auto beside) {
      const std::uint32_t at = ring + stage.index * (T::kStageBytes / 16);
      // The next descriptor arrives while this stage is multiplied.
      next = read(stage.index * 8 + 4);
      [[maybe_unused]] const auto& origin = shared.origin[T::Element::kBf16x3 ? stage.index : 0];
      [[maybe_unused]] KTileOf<T> k_tile;
      [[maybe_unused]] std::conditional_t<T::kXInRegisters, XRegisters<T>, std::monostate> x;
      // Issue wgmma for the parts that are present.
      if constexpr (T::Element::kBf16x3) {
        k_tile.multiply(at + own_rows, at + T::kXBytes / 16, record);
      } else if constexpr (T::Element::kPromoted) {
        k_tile.multiply(sums, at + own_rows, at + T::kXBytes / 16, record);
      } else if constexpr (T::kXInRegisters) {
        multiply_k_tile_from_registers<T>(sums, x, (at + own_rows) * 16 + lane_row, at + T::kXBytes / 16,
                                          record);
      } else if constexpr (T::kSwapAB) {
        multiply_k_tile_swap_ab<T>(sums, at, at + T::kXBytes / 16, record, warpgroup);
      } else {
        multiply_k_tile<T>(sums, at + own_rows, at + T::kXBytes / 16, record);
      }
      // Do other work meanwhile, then wait for the products.
      beside();
      ptx::wgmma_wait<0>();
      if constexpr (T::kXInRegisters) ptx::keep(x);
      if constexpr (T::Element::kBf16x3)
        k_tile.add_specials(params, place, sums, at + own_rows, record, origin);
      // Release the stage to the producer.
      __syncwarp();  // all lanes have read the stage
      if (lane == 0) pipeline.release(stage.index);
      if constexpr (T::Element::kBf16x3 || T::Element::kPromoted) k_tile.add_to(sums, record);
      ++turn;
    };
    const auto last = [&] { return (record & T::kLast) != 0; };
    // Advances to the next stage: waits for it and takes its descriptor, which was read a stage ahead.
    const auto next_stage = [&] {
      stage = StageOf<T::kStages>(turn);
      pipeline.wait(stage.index, stage.parity);
      record = share(next);
    };
    // Branches test the descriptor itself: ptxas does not know that all lanes agree on a separate flag, and
    // would keep addresses for each lane.
    const auto multiply_rest = [&] {
#pragma unroll 1
      while (true) {
        multiply([] {});
        if (last()) return;
        next_stage();
      }
    };
    if constexpr (T::kDeferredStore) {
      // During each of the first stages, a box of the previous tile is stored. During the first one, begin()
      // also fetches the operands of this tile's epilogue.
      const auto multiply_from = [&](auto self, auto n) {
        if constexpr (n.value == SwapABStore<T>::kBoxes) {
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
    // Epilogue.
#pragma unroll
    for (auto& block : sums) {
#pragma unroll
      for (auto& slice : block) ptx::pin(slice);
    }
    store.end(params, place, sums);
  }
  if constexpr (T::kDeferredStore) store.template put_all_kept<0>(params);
  if (ptx::elect_lane()) ptx::bulk_wait_read<0>();  // shared memory must outlive TMA's reads
}

}  // namespace sparseloom::kernels::cuda::wgmma::forward
