// dW on tensor cores: out[i][r, c] = sum over tokens t of dY[t, row(i) * bm + r] * X[t, col[i] * bn + c] for
// every stored block i.
//
//             rows of one block row      gathered columns of up to `group` of its blocks
//   tokens    dY . . # # . . .           X . # . . # . # .    A thread block walks down the tokens in steps,
//     |          . . # # . . .             . # . . # . # .    through a ring of stages in shared memory:
//     v          . . # # . . .             . # . . # . # .    [tokens][bm] + [tokens][columns]
//
// A block row's columns of dY are loaded once for all blocks of the work item. The gathered columns are the
// MMA's M and the rows its N: N comes in eights, so that bm = 8 wastes nothing, and a fragment of 16 columns
// (kPieces) may span two blocks of bn = 8. The other way round, bm = 8 would leave half of every MMA idle.
// Warp w multiplies the column fragments w, w + 4, ...: short rows stay spread over the warps.
//
// All thread blocks walk the tokens in step, so L2 holds the rows that they share and DRAM is read about
// once. For bm <= 32 the bound is the traffic from L2 to shared memory: (columns + bm) elements per token for
// 2 * columns * bm flops.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bsr_linear/sm80/mma/dw/instances.h"
#include "kernels/bsr_linear/sm80/mma/dw/item.cuh"
#include "kernels/bsr_linear/sm80/mma/dw/operands.cuh"
#include "kernels/bsr_linear/sm80/mma/dw/tile.cuh"
#include "kernels/shared/ptx/cp_async.cuh"

namespace sparseloom::kernels::cuda::mma::dw {

template <class DataType, int kBm>
struct Config {
  using Type = DataType;
  using Word = typename Type::Word;
  static constexpr int kRows = kBm;
  static constexpr int kColumns = mma_dw_columns(kBm);
  static constexpr int kTokens = mma_dw_tokens(sizeof(Word));
  static constexpr int kStep = 32 / sizeof(Word);  // the MMA's K
  static constexpr int kSteps = kTokens / kStep;
  // Three stages in flight are 48 KB per thread block, which one multiprocessor needs to use L2's full
  // bandwidth.
  static constexpr int kStages = 4;

  static constexpr int kWarps = kThreads / 32;
  static constexpr int kWarpRows = kRows / least(kRows, 64);  // warps side by side along the rows
  static constexpr int kWarpColumns = kWarps / kWarpRows;
  static constexpr int kSlices = kRows / kWarpRows / 8;         // 8-row fragments (N) of a warp
  static constexpr int kPieces = kColumns / 16 / kWarpColumns;  // 16-column fragments (M) of a warp
  // Resident thread blocks per multiprocessor, limited by registers: each slice x piece takes 4 sums per
  // thread.
  static constexpr int kResident = kSlices * kPieces > 16 ? 2 : 3;

  using TileX = SharedTile<Word, kColumns>;
  using TileY = SharedTile<Word, kRows>;
  static constexpr int kTileXBytes = kTokens * TileX::kPitch;
  static constexpr int kStageBytes = kTileXBytes + kTokens * TileY::kPitch;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static_assert(kSharedBytes <= 99 * 1024, "exceeds the 99 KB of shared memory of sm_86");
  static_assert(kStageBytes % 128 == 0 && kTileXBytes % 128 == 0,
                "the swizzle requires tiles at multiples of 128 bytes");

  static __host__ __device__ constexpr int piece(int warp_column, int i) {
    return warp_column + kWarpColumns * i;
  }
};

template <class Config>
using Sums = float[Config::kPieces][Config::kSlices][4];

/// sums += the warp's products of one stage. The operands of the next step are loaded while this one is
/// multiplied. Column fragments that the item lacks are not multiplied (a condition that is uniform in a
/// warp); the values loaded for them are undefined and unused.
template <class Config, class LoadNext>
__device__ __forceinline__ void mma_stage(Sums<Config>& sums, const LaneReads<Config>& reads,
                                          const std::byte* shared, int stage, int warp_pieces,
                                          LoadNext&& load_next) {
  Fragments<Config> fragments[2];
  reads.load(fragments[0], shared, stage, 0);
  load_next();
#pragma unroll
  for (int step = 0; step < Config::kSteps; ++step) {
    if (step + 1 < Config::kSteps) reads.load(fragments[(step + 1) % 2], shared, stage, step + 1);
    const Fragments<Config>& now = fragments[step % 2];
#pragma unroll
    for (int i = 0; i < Config::kPieces; ++i) {
      if (i >= warp_pieces) break;
#pragma unroll
      for (int j = 0; j < Config::kSlices; ++j) {
        Config::Type::mma(sums[i][j], now.x[i], now.y[j / 2][2 * (j % 2)], now.y[j / 2][2 * (j % 2) + 1]);
      }
    }
  }
}

/// Writes the warp's sums to their blocks, or adds them there. Padding gets zero instead of its sum: 0 * NaN
/// is NaN.
template <class Config, class Params>
__device__ __forceinline__ void store_blocks(const Params& params, const Item& item, const Sums<Config>& sums,
                                             int lane, int warp_column, int warp_row) {
  const int bn = 1 << params.log2_bn;
  const int first_row = (warp_row * Config::kSlices) * 8 + 2 * (lane % 4);
  auto* out = static_cast<typename Config::Word*>(params.out);
  const bool whole = params.partial == nullptr, adds = whole && params.accumulate;
  float* fp32 = adds    ? static_cast<float*>(params.out)
                : whole ? nullptr
                        : params.partial + blockIdx.y * params.elements;
#pragma unroll
  for (int i = 0; i < Config::kPieces; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int gathered = 16 * Config::piece(warp_column, i) + 8 * half + lane / 4;
      if (gathered >> params.log2_bn >= item.blocks) continue;
      const std::int64_t block = item.first + (gathered >> params.log2_bn);
      const int c = gathered & (bn - 1);
      const bool column_exists =
          (std::int64_t{block_column(params, block)} << params.log2_bn) + c < params.cols;
      const std::int64_t rows_left = column_exists ? params.rows - item.row * Config::kRows : 0;
      const std::int64_t corner = block * (Config::kRows << params.log2_bn) + c;
      const auto place = [&](int k) { return corner + (first_row + 8 * (k / 2) + k % 2) * bn; };
      float values[2 * Config::kSlices];
#pragma unroll
      for (int k = 0; k < 2 * Config::kSlices; ++k)
        values[k] = first_row + 8 * (k / 2) + k % 2 < rows_left ? sums[i][k / 2][2 * half + k % 2] : 0.f;
      // All loads precede the first store: as far as the compiler knows, a store may alias the next load.
      if (adds) {
#pragma unroll
        for (int k = 0; k < 2 * Config::kSlices; ++k) values[k] += fp32[place(k)];
      }
#pragma unroll
      for (int k = 0; k < 2 * Config::kSlices; ++k) {
        if (fp32 != nullptr) {
          fp32[place(k)] = values[k];
        } else {
          out[place(k)] = Config::Type::round(values[k]);
        }
      }
    }
  }
}

template <class Config>
__global__ void __launch_bounds__(kThreads, Config::kResident)
    mma_dw_kernel(const __grid_constant__ MmaDwParams params) {
  extern __shared__ __align__(128) std::byte shared[];
  using Word = typename Config::Word;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_column = warp % Config::kWarpColumns, warp_row = warp / Config::kWarpColumns;

  const Item item = find_item(params, blockIdx.x, lane);
  if (item.blocks == 0) return;
  const std::int64_t first_token = blockIdx.y * params.piece_tokens;
  const std::int64_t rest = params.m - first_token;
  const std::int64_t tokens = rest < params.piece_tokens ? rest : params.piece_tokens;
  const int chunks = static_cast<int>((tokens + Config::kTokens - 1) / Config::kTokens);
  const int last_valid = static_cast<int>(tokens - std::int64_t{chunks - 1} * Config::kTokens);

  using SourceX = TileSource<Word, typename Config::TileX, Config::kTokens>;
  using SourceY = TileSource<Word, typename Config::TileY, Config::kTokens>;
  const int gathered = SourceX::chunk_of_thread() * Config::TileX::kPerChunk;
  const int slot = gathered >> params.log2_bn;
  const bool wanted = slot < item.blocks;
  const std::int64_t x_column = (std::int64_t{wanted ? params.col[item.first + slot] : 0} << params.log2_bn) +
                                (gathered & ((1 << params.log2_bn) - 1));
  SourceX source_x(params.x, params.x_stride, first_token, params.cols, x_column, wanted, params.x_chunks);
  const std::int64_t dy_column =
      item.row * Config::kRows + SourceY::chunk_of_thread() * Config::TileY::kPerChunk;
  SourceY source_y(params.dy, params.dy_stride, first_token, params.rows, dy_column, true, params.dy_chunks);

  const auto load_stage = [&](int chunk, int slot_of_ring) {
    if (chunk < chunks) {
      std::byte* stage = shared + slot_of_ring * Config::kStageBytes;
      const int valid = chunk + 1 == chunks ? last_valid : Config::kTokens;
      load_tile(source_x, stage, valid);
      load_tile(source_y, stage + Config::kTileXBytes, valid);
    }
    ptx::cp_async_commit();  // even an empty group: the wait below counts groups
  };

  const LaneReads<Config> reads(lane, warp_column, warp_row);
  const int item_pieces = ((item.blocks << params.log2_bn) + 15) / 16;
  const int warp_pieces = (item_pieces - warp_column + Config::kWarpColumns - 1) / Config::kWarpColumns;
  Sums<Config> sums = {};
  // Prologue: fill all stages but one.
  for (int stage = 0; stage < Config::kStages - 1; ++stage) load_stage(stage, stage);
  int now = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    // Wait for the stage. After the barrier, all warps have read the previous stage: it may be refilled.
    ptx::cp_async_wait<Config::kStages - 2>();
    __syncthreads();
    const int before = now == 0 ? Config::kStages - 1 : now - 1;
    // Multiply the stage, and issue the copies of a later one in between.
    mma_stage<Config>(sums, reads, shared, now * Config::kStageBytes, warp_pieces,
                      [&] { load_stage(chunk + Config::kStages - 1, before); });
    now = now + 1 == Config::kStages ? 0 : now + 1;
  }
  store_blocks<Config>(params, item, sums, lane, warp_column, warp_row);
}

}  // namespace sparseloom::kernels::cuda::mma::dw
