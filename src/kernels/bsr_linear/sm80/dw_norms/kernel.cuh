// The norms of all blocks of dW = dY^T X, which is never stored: the mainloop of ../mma/dw over tiles of 128
// columns of X x 128 columns of dY, with an epilogue that reduces the sums (shared/epilogue/block_norms.cuh).
// A thread block has one tile and all tokens, since the norm of a sum is not the sum of norms.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bsr_linear/sm80/mma/dw/kernel.cuh"
#include "kernels/shared/epilogue/block_norms.cuh"
#include "kernels/shared/ptx/cp_async.cuh"
#include "kernels/shared/ptx/mma.cuh"

namespace sparseloom::kernels::cuda::mma_norms {

/// fp32 as sums of two TF32: three of their four products are added (3xTF32). The omitted product is below
/// 2^-22 of the whole.
struct Tf32x3 {
  using Word = std::uint32_t;
  static __device__ __forceinline__ std::uint32_t operand(std::uint32_t bits) { return bits; }
  static __device__ __forceinline__ std::uint32_t rest(std::uint32_t bits, std::uint32_t high) {
    return ptx::cvt_rna_tf32(__float_as_uint(__uint_as_float(bits) - __uint_as_float(high)));
  }
  static __device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    std::uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) high[i] = ptx::cvt_rna_tf32(a[i]), low[i] = rest(a[i], high[i]);
    const std::uint32_t high0 = ptx::cvt_rna_tf32(b0), high1 = ptx::cvt_rna_tf32(b1);
    ptx::mma_m16n8k8_tf32(d, low, high0, high1);
    ptx::mma_m16n8k8_tf32(d, high, rest(b0, high0), rest(b1, high1));
    ptx::mma_m16n8k8_tf32(d, high, high0, high1);
  }
};

constexpr int kSide = 128, kCells = kSide / 8;

struct Params {
  const void* dy;  // [m, rows]
  const void* x;   // [m, cols]
  std::int64_t dy_stride, x_stride, m, rows, cols;
  bool dy_chunks, x_chunks;  // 16-byte chunks of the rows are aligned: cp.async; otherwise by elements
  NormGrid grid;
  BlockNorm norm;
  std::int32_t tile_cols;  // tiles side by side along X
};

/// Reduces the sums of a tile and writes its norms. The cells overwrite the ring.
template <BlockNorm kNorm, class Config>
__device__ __forceinline__ void finish_tile(const Params& params, std::byte* shared,
                                            const mma::dw::Sums<Config>& sums, std::int64_t tile_row,
                                            std::int64_t tile_col) {
  constexpr int kAcross = 2 * Config::kPieces, kCount = Config::kSlices * kAcross;
  static_assert(kCount == 64, "a lane ends with two cells");
  float own[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float(&fragment)[4] = sums[i % kAcross / 2][i / kAcross];
    own[i] = NormSum<kNorm>::of(fragment[i % 2 * 2], fragment[i % 2 * 2 + 1]);
  }
  join_lanes<kNorm, kCount>(own);
  // The lane's two cells are the halves of a 16-column piece in an 8-row slice.
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_column = warp % Config::kWarpColumns, warp_row = warp / Config::kWarpColumns;
  auto& cells = *reinterpret_cast<float(*)[kCells][kCells]>(shared);
  __syncthreads();  // all warps have read the ring
  *reinterpret_cast<float2*>(&cells[warp_row * Config::kSlices + lane / Config::kPieces]
                                   [2 * Config::piece(warp_column, lane % Config::kPieces)]) =
      make_float2(own[0], own[1]);
  __syncthreads();
  join_cells<kNorm, mma::dw::kThreads>(cells, params.grid, tile_row * (kCells >> params.grid.row_shift),
                                       tile_col * (kCells >> params.grid.col_shift), threadIdx.x,
                                       [] { __syncthreads(); });
}

template <class Type>
__global__ void __launch_bounds__(mma::dw::kThreads, mma::dw::Config<Type, kSide>::kResident)
    mma_norms_kernel(const __grid_constant__ Params params) {
  using Config = mma::dw::Config<Type, kSide>;
  using Word = typename Config::Word;
  static_assert(Config::kColumns == kSide);
  extern __shared__ __align__(128) std::byte shared[];
  const std::int64_t tile_row = blockIdx.x / params.tile_cols, tile_col = blockIdx.x % params.tile_cols;
  const int chunks = static_cast<int>((params.m + Config::kTokens - 1) / Config::kTokens);
  const int last_valid = static_cast<int>(params.m - std::int64_t{chunks - 1} * Config::kTokens);

  using SourceX = mma::dw::TileSource<Word, typename Config::TileX, Config::kTokens>;
  using SourceY = mma::dw::TileSource<Word, typename Config::TileY, Config::kTokens>;
  const auto column = [](std::int64_t tile, int chunk) {
    return tile * kSide + chunk * Config::TileX::kPerChunk;
  };
  SourceX source_x(params.x, params.x_stride, 0, params.cols, column(tile_col, SourceX::chunk_of_thread()),
                   true, params.x_chunks);
  SourceY source_y(params.dy, params.dy_stride, 0, params.rows, column(tile_row, SourceY::chunk_of_thread()),
                   true, params.dy_chunks);
  const auto load_stage = [&](int chunk, int slot_of_ring) {
    if (chunk < chunks) {
      std::byte* stage = shared + slot_of_ring * Config::kStageBytes;
      const int valid = chunk + 1 == chunks ? last_valid : Config::kTokens;
      load_tile(source_x, stage, valid);
      load_tile(source_y, stage + Config::kTileXBytes, valid);
    }
    ptx::cp_async_commit();  // even an empty group: the wait below counts groups
  };

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const mma::dw::LaneReads<Config> reads(lane, warp % Config::kWarpColumns, warp / Config::kWarpColumns);
  mma::dw::Sums<Config> sums = {};
  for (int stage = 0; stage < Config::kStages - 1; ++stage) load_stage(stage, stage);
  int now = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    // Wait for the stage. After the barrier, all warps have read the previous stage: it may be refilled.
    ptx::cp_async_wait<Config::kStages - 2>();
    __syncthreads();
    const int before = now == 0 ? Config::kStages - 1 : now - 1;
    mma::dw::mma_stage<Config>(sums, reads, shared, now * Config::kStageBytes, Config::kPieces,
                               [&] { load_stage(chunk + Config::kStages - 1, before); });
    now = now + 1 == Config::kStages ? 0 : now + 1;
  }
  ptx::cp_async_wait<0>();  // the cells overwrite the ring
  switch (params.norm) {
    case BlockNorm::l1: return finish_tile<BlockNorm::l1, Config>(params, shared, sums, tile_row, tile_col);
    case BlockNorm::l2: return finish_tile<BlockNorm::l2, Config>(params, shared, sums, tile_row, tile_col);
    case BlockNorm::max: return finish_tile<BlockNorm::max, Config>(params, shared, sums, tile_row, tile_col);
  }
}

}  // namespace sparseloom::kernels::cuda::mma_norms
