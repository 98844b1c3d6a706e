// Splits fp32 blocks into planes of bf16; blocks.h has the layout.
#include <cuda_runtime.h>

#include "kernels/bsr_linear/sm90/wgmma/split_bf16x3/blocks.h"
#include "kernels/shared/ptx/convert.cuh"

namespace sparseloom::kernels::cuda {
namespace {

constexpr int kSide = 32, kThreads = 256;

// A thread block converts one block. It finds the block's largest magnitude, then moves tiles of 32 outputs x
// 32 k through shared memory.
__global__ void __launch_bounds__(kThreads)
    split(std::byte* __restrict__ planes, std::int32_t* __restrict__ kinds, const float* __restrict__ values,
          const std::int32_t* __restrict__ slot, int rows, int cols) {
  __shared__ float tile[kSide][kSide + 1];  // [output][k]
  __shared__ unsigned largest;  // bits of a magnitude: ordered like magnitudes, with NaN above all
  const std::int64_t block = blockIdx.x, elements = std::int64_t{rows} * cols;
  const bool transposed = slot != nullptr;
  const float* const from = values + (transposed ? slot[block] : block) * elements;
  const int outputs = transposed ? cols : rows, side = transposed ? rows : cols;

  // The block's kind follows from its largest magnitude and whether it has an infinity.
  unsigned mine = 0;
  bool infinity = false;
  for (int i = threadIdx.x; i < elements; i += kThreads) {
    const unsigned bits = __float_as_uint(from[i]) & 0x7fffffffu;
    infinity |= bits == 0x7f800000u;
    mine = max(mine, bits);
  }
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  atomicMax(&largest, mine);
  infinity = __syncthreads_or(infinity);
  const bool tiny = largest != 0 && largest < __float_as_uint(0x1p-100f);
  if (threadIdx.x == 0) kinds[block] = infinity ? kHasInfinity : tiny ? kTiny : 0;

  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
  const int output = threadIdx.x / 8, chunk = threadIdx.x % 8 / 2,
            half = threadIdx.x % 2;  // chunk of 8 k in the row; half of 4 k
  for (int first_k = 0; first_k < side; first_k += kSide) {
    std::byte* const part = planes + (block * elements + std::int64_t{first_k} * outputs) * 6;
    for (int first_output = 0; first_output < outputs; first_output += kSide) {
      __syncthreads();  // the previous tile has been read
#pragma unroll
      for (int i = y; i < kSide; i += kThreads / kSide) {
        if (transposed) {
          tile[x][i] = from[(first_k + i) * cols + first_output + x];
        } else {
          tile[i][x] = from[(first_output + i) * cols + first_k + x];
        }
      }
      __syncthreads();
      // Split two pairs of consecutive k, which go to positions chunk * 8 + half * 4 .. of the row.
      std::uint32_t bits[3][2];
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const int k = (half * 2 + pair) * 8 + chunk / 2 * 4 + chunk % 2 * 2;
        float low = tile[output][k], high = tile[output][k + 1];
        if (tiny || isinf(low)) low = 0;
        if (tiny || isinf(high)) high = 0;
#pragma unroll
        for (int plane = 0; plane < 3; ++plane) {
          const std::uint32_t cut = ptx::cvt_rz_bf16x2(low, high);
          bits[plane][pair] = cut;
          low -= __uint_as_float(cut << 16), high -= __uint_as_float(cut & 0xffff0000u);
        }
      }
      const int row = first_output + output;
      std::byte* const to = part + row * 64 + (chunk ^ row / 2 % 4) * 16 + half * 8;
#pragma unroll
      for (int plane = 0; plane < 3; ++plane)
        *reinterpret_cast<uint2*>(to + plane * outputs * 64) = make_uint2(bits[plane][0], bits[plane][1]);
    }
  }
}

}  // namespace

cudaError_t bf16x3_blocks(std::byte* workspace, const float* values, const std::int32_t* slot,
                          std::int64_t blocks, BlockShape block, cudaStream_t stream) noexcept {
  if (blocks > 0) {
    auto* const kinds = const_cast<std::int32_t*>(bf16x3_kinds(workspace, blocks, block));
    split<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(workspace, kinds, values, slot, block.rows,
                                                                  block.cols);
  }
  return cudaGetLastError();
}

}  // namespace sparseloom::kernels::cuda
