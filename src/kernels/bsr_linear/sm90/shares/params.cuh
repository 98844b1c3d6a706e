// The kernel parameters of sm90_shares. For dX, "block row" means block column in all files of this folder.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "sparseloom/activation.h"

namespace sparseloom::kernels::cuda::shares {

inline constexpr int kChunk = 64;  // elements of the reduction in a stage: rows of 128 bytes

struct Params {
  CUtensorMap x, w;                // [m, x_width] in boxes of tile_tokens x a piece; [blocks * bm, bn]
  const void* values;              // for prefetching only
  const std::int32_t* list_begin;  // crow or ccol, [block_rows + 1]
  const std::int32_t* along;       // col or row, [blocks]
  const std::int32_t* slot;        // dX only, [blocks]
  const void* bias;                // [out_width] or null
  const void* residual;            // [m, out_width], residual_stride, or null
  void* out;                       // [m, out_width], out_stride
  void* pre;                       // the same before the activation, or null
  float4* partials;                // [token tile][share][fragment][lane]
  std::uint64_t* flags;            // [token tile][share]
  std::uint64_t nonce;             // value of a set flag
  std::int64_t out_stride, pre_stride, residual_stride;
  int m, out_width;
  int block_rows, shares;
  int tile_tokens;             // tokens per token tile, at most a tile's capacity
  int side_log2, k_side_log2;  // of a block along the outputs, and along the reduction
  int strips_log2;             // strips per block row: one or two
  int pieces_log2;             // pieces per block in a strip: one or two
  Activation activation;
  bool store_pairs, store_pre_pairs;  // two outputs may be stored at once
  std::int64_t blocks, block_bytes;   // for prefetching only
};

}  // namespace sparseloom::kernels::cuda::shares
