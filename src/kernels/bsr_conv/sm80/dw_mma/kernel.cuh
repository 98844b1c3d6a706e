// dW of a convolution on tensor cores: out[i][t][r, c] = sum over pixels p of dy of dy[p, row(i) * bm + r] *
// x[under(p, t), col[i] * bn + c] for every stored block i and tap t.
//
// It uses the kernel of bsr_linear/sm80/mma/dw with a block under a tap as block and pixels as tokens. The
// taps of a block are consecutive and share a work item, which reads dy's rows once, and x's once per tap,
// from L2.
//
//   blocks      of block row r: crow[r] taps .. crow[r + 1] taps - 1; block b is stored block b / taps
//   pixels      one warp finds those of x for a step, a step ahead, for the walk's first tap
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bsr_conv/cuda/pixel.cuh"
#include "kernels/bsr_conv/sm80/dw_mma/instances.h"
#include "kernels/bsr_linear/sm80/mma/dw/kernel.cuh"
#include "kernels/shared/ptx/cp_async.cuh"

namespace sparseloom::kernels::cuda::conv_dw {

__device__ __forceinline__ std::int64_t list_begin(const Params& params, std::int64_t row) {
  return std::int64_t{params.crow[row]} * params.taps;
}
__device__ __forceinline__ std::int32_t block_column(const Params& params, std::int64_t block) {
  return params.col[static_cast<unsigned>(block) / params.taps];
}

/// A thread's copies of x: the same chunk of every kPassTokens-th pixel, under one tap.
template <class Config>
class Gather {
  using Tile = typename Config::TileX;
  using Word = typename Config::Word;
  static constexpr int kPassTokens = mma::dw::kThreads / Tile::kChunks,
                       kPasses = Config::kTokens / kPassTokens;
  static_assert(mma::dw::kThreads % Tile::kChunks == 0 && Config::kTokens % kPassTokens == 0);

 public:
  __device__ __forceinline__ Gather(const Params& params, const mma::dw::Item& item, const Walk (&walk)[3])
      : walk_(walk),
        from_(static_cast<const Word*>(params.x)),
        stride_(params.x_stride),
        few_taps_(params.few_taps),
        aligned_(params.x_chunks) {
    const int gathered = static_cast<int>(threadIdx.x) % Tile::kChunks * Tile::kPerChunk;
    wanted_ = gathered >> params.log2_bn < item.blocks;
    if (!wanted_) return;
    const auto block = static_cast<unsigned>(item.first + (gathered >> params.log2_bn));
    tap_ = tap_of(walk, params.axis, block % params.taps);
    const std::int64_t column = (std::int64_t{block_column(params, block)} << params.log2_bn) +
                                (gathered & ((1 << params.log2_bn) - 1));
    const std::int64_t left = params.cols - column;
    bytes_ = left >= Tile::kPerChunk ? 16 : left > 0 ? static_cast<int>(left * sizeof(Word)) : 0;
    column_ = static_cast<int>(column);
  }

  /// Copies the pixels of a step into its tile.
  __device__ __forceinline__ void load(const Pixel (&pixels)[Config::kTokens],
                                       const Under (&under)[Config::kTokens], std::byte* tile) const {
    if (!wanted_) return;
    const std::uint32_t to = ptx::shared_address(tile);
    const int first = static_cast<int>(threadIdx.x) / Tile::kChunks,
              chunk = static_cast<int>(threadIdx.x) % Tile::kChunks;
    if (few_taps_) {
      const auto stride = static_cast<std::int32_t>(stride_);
      const Word* const from = from_ + std::int64_t{tap_.adds.number} * stride + column_;
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const int token = first + pass * kPassTokens;
        const Under pixel = under[token];
        const bool inside = (tap_.needs & ~pixel.inside) == 0;
        ptx::cp_async_cg(to + Tile::offset(token, chunk),
                         inside ? from + std::int64_t{pixel.number} * stride : from_, inside ? bytes_ : 0);
      }
    } else if (aligned_) {
#pragma unroll 4
      for (int pass = 0; pass < kPasses; ++pass) {
        const int token = first + pass * kPassTokens;
        const std::int32_t number = moved(pixels[token], tap_.adds, walk_);
        ptx::cp_async_cg(to + Tile::offset(token, chunk),
                         number < 0 ? from_ : from_ + number * stride_ + column_, number < 0 ? 0 : bytes_);
      }
    } else {
#pragma unroll 1
      for (int pass = 0; pass < kPasses; ++pass) {
        const int token = first + pass * kPassTokens;
        const std::int32_t number = moved(pixels[token], tap_.adds, walk_);
        *reinterpret_cast<uint4*>(tile + Tile::offset(token, chunk)) = mma::dw::read_elements<Word>(
            reinterpret_cast<const std::byte*>(from_ + (number < 0 ? 0 : number * stride_ + column_)),
            number < 0 ? 0 : bytes_);
      }
    }
  }

 private:
  const Walk (&walk_)[3];
  const Word* from_;
  std::int64_t stride_;
  Tap tap_;
  int column_, bytes_;
  bool few_taps_, aligned_, wanted_;
};

template <class Config>
__global__ void __launch_bounds__(mma::dw::kThreads, Config::kResident)
    conv_dw_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ Pixel pixels[2][Config::kTokens];
  __shared__ Under under[2][Config::kTokens];
  __shared__ Walk walk[3];
  using Word = typename Config::Word;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_column = warp % Config::kWarpColumns, warp_row = warp / Config::kWarpColumns;

  const mma::dw::Item item = mma::dw::find_item(params, blockIdx.x, lane);
  if (item.blocks == 0) return;
  if (threadIdx.x < 3) walk[threadIdx.x] = conv::walk_forward(params.axis[threadIdx.x]);
  __syncthreads();
  const std::int64_t first_token = blockIdx.y * params.piece_tokens;
  const std::int64_t rest = params.m - first_token;
  const std::int64_t tokens = rest < params.piece_tokens ? rest : params.piece_tokens;
  const int chunks = static_cast<int>((tokens + Config::kTokens - 1) / Config::kTokens);
  const int last_valid = static_cast<int>(tokens - std::int64_t{chunks - 1} * Config::kTokens);

  const Gather<Config> gather(params, item, walk);
  using SourceY = mma::dw::TileSource<Word, typename Config::TileY, Config::kTokens>;
  const std::int64_t dy_column =
      item.row * Config::kRows + SourceY::chunk_of_thread() * Config::TileY::kPerChunk;
  SourceY source_y(params.dy, params.dy_stride, first_token, params.rows, dy_column, true, params.dy_chunks);

  const bool finds = threadIdx.x < Config::kTokens;
  const auto find = [&](int chunk) {
    const std::int64_t token = std::int64_t{chunk} * Config::kTokens + threadIdx.x;
    const Pixel pixel =
        token >= tokens ? kNoPixel
                        : pixel_under(
                              walk, static_cast<unsigned>(first_token + token), [](int, int) {}, [](int) {});
    if (params.few_taps) {
      under[chunk % 2][threadIdx.x] = {pixel.number, insides(pixel, walk)};
    } else {
      pixels[chunk % 2][threadIdx.x] = pixel;
    }
  };
  const auto load_stage = [&](int chunk, int slot_of_ring) {
    if (chunk < chunks) {
      std::byte* stage = shared + slot_of_ring * Config::kStageBytes;
      gather.load(pixels[chunk % 2], under[chunk % 2], stage);
      mma::dw::load_tile(source_y, stage + Config::kTileXBytes,
                         chunk + 1 == chunks ? last_valid : Config::kTokens);
    }
    ptx::cp_async_commit();  // even an empty group: the wait below counts groups
  };

  const mma::dw::LaneReads<Config> reads(lane, warp_column, warp_row);
  const int item_pieces = ((item.blocks << params.log2_bn) + 15) / 16;
  const int warp_pieces = (item_pieces - warp_column + Config::kWarpColumns - 1) / Config::kWarpColumns;
  mma::dw::Sums<Config> sums = {};
  // Prologue: fill all stages but one. A step's pixels are overwritten once those of the next were read.
  for (int stage = 0; stage < Config::kStages - 1; ++stage) {
    if (finds) find(stage);
    __syncthreads();
    load_stage(stage, stage);
  }
  if (finds) find(Config::kStages - 1);
  int now = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    // Wait for the stage. After the barrier, all warps have read the previous stage: it may be refilled.
    ptx::cp_async_wait<Config::kStages - 2>();
    __syncthreads();
    const int before = now == 0 ? Config::kStages - 1 : now - 1;
    // Multiply the stage, and issue the copies of a later one in between.
    mma::dw::mma_stage<Config>(sums, reads, shared, now * Config::kStageBytes, warp_pieces,
                               [&] { load_stage(chunk + Config::kStages - 1, before); });
    if (finds) find(chunk + Config::kStages);
    now = now + 1 == Config::kStages ? 0 : now + 1;
  }
  mma::dw::store_blocks<Config>(params, item, sums, lane, warp_column, warp_row);
}

}  // namespace sparseloom::kernels::cuda::conv_dw
