// Splits dW's fp32 operands into planes of bf16, and adds the products that these cannot hold; tokens.h has
// the layout.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/bsr_linear/sm90/wgmma/split_bf16x3/special.cuh"
#include "kernels/bsr_linear/sm90/wgmma/split_bf16x3/tokens.h"
#include "kernels/shared/ptx/convert.cuh"

namespace sparseloom::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarpColumns = 64, kColumns = kThreads / 32 * kWarpColumns;

struct Bf16x3Params {
  Bf16x3Operand operands[2];
  Bf16x3Tokens shape[2];
  unsigned first_tiles;  // thread blocks along grid.x that work on operands[0]
  std::uint32_t* any;
  bool pairs[2];  // rows begin at multiples of 8 bytes
};

// A warp takes 32 tokens of 64 columns, two columns per lane.
__global__ void __launch_bounds__(kThreads) split(const __grid_constant__ Bf16x3Params params) {
  const bool second = blockIdx.x >= params.first_tiles;
  const Bf16x3Operand& operand = params.operands[second];
  const Bf16x3Tokens& shape = params.shape[second];
  const int lane = threadIdx.x % 32;
  const std::int64_t strip =
      (second ? blockIdx.x - params.first_tiles : blockIdx.x) * (kColumns / kWarpColumns) + threadIdx.x / 32;
  const std::int64_t column = strip * kWarpColumns + lane * 2;
  if (strip * kWarpColumns >= shape.columns) return;
  const std::int64_t stride = shape.stride(), groups = shape.groups();
  const bool pair = params.pairs[second] && column + 1 < shape.columns;
#pragma unroll 1
  for (std::int64_t group = blockIdx.y; group < groups; group += gridDim.y) {
    const float* const from = operand.from.data + group * kBf16x3Tokens * operand.from.stride + column;
    const std::int64_t tokens = shape.tokens - group * kBf16x3Tokens;
    // Load the 32 tokens of both columns.
    float low[kBf16x3Tokens], high[kBf16x3Tokens];
    float largest_low = 0, largest_high = 0;  // fmaxf drops NaN, which the planes can hold
#pragma unroll
    for (int t = 0; t < kBf16x3Tokens; ++t) {
      const float* const at = from + t * operand.from.stride;
      if (pair && t < tokens) {
        const float2 both = __ldcs(reinterpret_cast<const float2*>(at));
        low[t] = both.x, high[t] = both.y;
      } else {
        low[t] = t < tokens && column < shape.columns ? __ldcs(at) : 0;
        high[t] = t < tokens && column + 1 < shape.columns ? __ldcs(at + 1) : 0;
      }
    }
    // Mark the columns that the planes cannot hold.
#pragma unroll
    for (int t = 0; t < kBf16x3Tokens; ++t) {
      largest_low = fmaxf(largest_low, fabsf(low[t]));
      largest_high = fmaxf(largest_high, fabsf(high[t]));
    }
    const bool special_low = is_special(largest_low), special_high = is_special(largest_high);
    const unsigned even = __ballot_sync(0xffffffff, special_low),
                   odd = __ballot_sync(0xffffffff, special_high);
    if (lane == 0) {
      *reinterpret_cast<uint2*>(operand.marks + group * shape.mark_words() + strip * 2) =
          make_uint2(even, odd);
      if ((even | odd) != 0) *params.any = 1;
    }
    if (column >= stride) continue;
    std::byte* const to = operand.planes + (group * (kBf16x3Planes * kBf16x3Tokens) * stride + column) * 2;
    // Split both columns into three terms.
#pragma unroll
    for (int t = 0; t < kBf16x3Tokens; ++t) {
      float rest_low = special_low ? 0 : low[t], rest_high = special_high ? 0 : high[t];
#pragma unroll
      for (int plane = 0; plane < kBf16x3Planes; ++plane) {
        const std::uint32_t cut = ptx::cvt_rz_bf16x2(rest_low, rest_high);
        *reinterpret_cast<std::uint32_t*>(to + (plane * kBf16x3Tokens + t) * stride * 2) = cut;
        rest_low -= __uint_as_float(cut << 16), rest_high -= __uint_as_float(cut & 0xffff0000u);
      }
    }
  }
}

struct MarkedParams {
  float* out;
  const std::int32_t* crow;
  const std::int32_t* col;
  std::int32_t block_rows, bm, bn;
  std::int64_t blocks;
  Bf16x3Operand operands[2];
  Bf16x3Tokens shape[2];
  const std::uint32_t* any;
};

/// Whether the column is marked; `words` are the marks of one group of 32 tokens.
__device__ __forceinline__ bool is_marked(const std::uint32_t* words, std::int64_t column) {
  return (words[column / 64 * 2 + column % 2] >> (column % 64 / 2) & 1) != 0;
}

__device__ __forceinline__ bool any_marked(const std::uint32_t* words, std::int64_t first, std::int64_t end) {
  bool any = false;
  for (std::int64_t column = first; column < end; ++column) any |= is_marked(words, column);
  return any;
}

// A thread block takes one stored block after another. This is slow where there are marks, which is rare;
// without marks it is one load.
__global__ void __launch_bounds__(kThreads) add_marked(const __grid_constant__ MarkedParams params) {
  if (*params.any == 0) return;
  const Bf16x3Tokens &rows = params.shape[0], &cols = params.shape[1];
  const TokenMatrix &dy = params.operands[0].from, &x = params.operands[1].from;
#pragma unroll 1
  for (std::int64_t block = blockIdx.x; block < params.blocks; block += gridDim.x) {
    // Find the block's row by binary search.
    std::int32_t row = 0, above = params.block_rows;  // crow[row] <= block < crow[above]
    while (above - row > 1) {
      const std::int32_t middle = row + (above - row) / 2;
      (params.crow[middle] <= block ? row : above) = middle;
    }
    const std::int64_t first_row = std::int64_t{row} * params.bm,
                       first_col = std::int64_t{params.col[block]} * params.bn;
    const std::int64_t end_row = min(first_row + params.bm, rows.columns),
                       end_col = min(first_col + params.bn, cols.columns);
    float* const out = params.out + block * params.bm * params.bn;
    // Add the products of the marked groups of 32 tokens.
#pragma unroll 1
    for (std::int64_t group = 0; group < rows.groups(); ++group) {
      const std::uint32_t* const row_marks = params.operands[0].marks + group * rows.mark_words();
      const std::uint32_t* const col_marks = params.operands[1].marks + group * cols.mark_words();
      if (!any_marked(row_marks, first_row, end_row) && !any_marked(col_marks, first_col, end_col)) continue;
      const std::int64_t first = group * kBf16x3Tokens, end = min(first + kBf16x3Tokens, rows.tokens);
#pragma unroll 1
      for (int i = threadIdx.x; i < params.bm * params.bn; i += kThreads) {
        const std::int64_t r = first_row + i / params.bn, c = first_col + i % params.bn;
        if (r >= end_row || c >= end_col || !(is_marked(row_marks, r) || is_marked(col_marks, c))) continue;
        float sum = 0;
        for (std::int64_t t = first; t < end; ++t)
          sum = fmaf(dy.data[t * dy.stride + r], x.data[t * x.stride + c], sum);
        out[i] += sum;
      }
    }
  }
}

}  // namespace

cudaError_t bf16x3_tokens(const Bf16x3Operand (&operands)[2], std::int64_t tokens, std::uint32_t* any,
                          cudaStream_t stream) noexcept {
  if (const cudaError_t status = cudaMemsetAsync(any, 0, sizeof(*any), stream); status != cudaSuccess)
    return status;
  Bf16x3Params params{};
  std::int64_t tiles[2];
  for (int i = 0; i < 2; ++i) {
    const TokenMatrix& from = operands[i].from;
    params.operands[i] = operands[i];
    params.shape[i] = {from.columns, tokens};
    params.pairs[i] = reinterpret_cast<std::uintptr_t>(from.data) % 8 == 0 && from.stride % 2 == 0;
    tiles[i] = (from.columns + kColumns - 1) / kColumns;
  }
  params.first_tiles = static_cast<unsigned>(tiles[0]);
  params.any = any;
  const auto rows = static_cast<unsigned>(std::min<std::int64_t>(params.shape[0].groups(), 65535));
  if (rows > 0 && tiles[0] + tiles[1] > 0) {
    split<<<dim3(static_cast<unsigned>(tiles[0] + tiles[1]), rows), kThreads, 0, stream>>>(params);
  }
  return cudaGetLastError();
}

cudaError_t add_marked_tokens(float* out, const IndexView& index, const Bf16x3Operand (&operands)[2],
                              std::int64_t tokens, const std::uint32_t* any, cudaStream_t stream) noexcept {
  MarkedParams params{};
  params.out = out;
  params.crow = index.crow;
  params.col = index.col;
  params.block_rows = static_cast<std::int32_t>(index.block_rows());
  params.bm = index.block.rows;
  params.bn = index.block.cols;
  params.blocks = index.blocks;
  for (int i = 0; i < 2; ++i) {
    params.operands[i] = operands[i];
    params.shape[i] = {operands[i].from.columns, tokens};
  }
  params.any = any;
  constexpr std::int64_t kMostBlocks = 1056;  // eight per SM of an H200; they nearly always find no mark
  if (index.blocks > 0) {
    add_marked<<<static_cast<unsigned>(std::min(index.blocks, kMostBlocks)), kThreads, 0, stream>>>(params);
  }
  return cudaGetLastError();
}

}  // namespace sparseloom::kernels::cuda
