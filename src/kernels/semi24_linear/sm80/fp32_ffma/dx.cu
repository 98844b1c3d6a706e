// dX of f32: out [m, cols] = dY [m, rows] W.
//
//   grid.x: 128 in features, each of a cluster that divides the rows of W      grid.y: tiles of tokens
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/semi24_linear/sm80/entries.h"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/ptx/cluster.cuh"
#include "kernels/shared/ptx/griddepcontrol.cuh"
#include "kernels/shared/ptx/ld.cuh"
#include "kernels/shared/vector.cuh"

namespace sparseloom::kernels::cuda::semi24_ffma {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kAtOnce = kDxRows / kWarps;

struct Params {
  const uint2* values;  // one group each
  const std::uint8_t* positions;
  const float* dy;
  float* out;
  std::int64_t dy_stride, out_stride;  // elements
  std::int32_t rows, cols, tokens, groups;
};

/// Rows of W from `begin` to `end` for thread block `rank` of `ranks`: multiples of kAtOnce.
struct Cut {
  std::int32_t begin, end;
  __device__ __forceinline__ Cut(std::int32_t rows, unsigned rank, unsigned ranks)
      : begin(at(rows, rank, ranks)), end(at(rows, rank + 1, ranks)) {}

 private:
  static __device__ __forceinline__ std::int32_t at(std::int32_t rows, unsigned rank, unsigned ranks) {
    return static_cast<std::int32_t>(static_cast<unsigned>(rows / kAtOnce) * rank / ranks) * kAtOnce;
  }
};

/// sum += a b if `stored`: by a predicate, where the compiler would branch. On an H100 41 tokens then take 78
/// us instead of 128, but one token of 5120 x 5120 35 instead of 26, so fewer than eight tokens branch.
__device__ __forceinline__ void add_if(bool stored, float& sum, float a, float b) {
  asm("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n@p fma.rn.f32 %0, %1, %2, %0;\n}"
      : "+f"(sum)
      : "f"(a), "f"(b), "r"(static_cast<int>(stored)));
}

/// sums += dY W of the warp's rows, for the lane's group, which is within W.
template <int kMany>
__device__ __forceinline__ void multiply(const Params& params, float (&sums)[kMany][4], std::int32_t group,
                                         std::int32_t token, const Cut& cut) {
  const std::int64_t position_bytes = (params.groups + 1) / 2;
#pragma unroll 1
  for (std::int32_t row = cut.begin + static_cast<std::int32_t>(threadIdx.x) / 32 * kAtOnce; row < cut.end;
       row += kDxRows) {
    uint2 stored[kAtOnce];
    unsigned bits[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      stored[i] = ptx::ld_global(params.values + std::int64_t{row + i} * params.groups + group);
      bits[i] = ptx::ld_global(params.positions + (row + i) * position_bytes + group / 2) >> group % 2 * 4;
    }
    float dy[kMany][kAtOnce];
#pragma unroll
    for (int t = 0; t < kMany; ++t) {
      const std::int64_t from = min(token + t, params.tokens - 1) * params.dy_stride + row;
      const uint4 four = ptx::ld_global(reinterpret_cast<const uint4*>(params.dy + from));
      dy[t][0] = __uint_as_float(four.x), dy[t][1] = __uint_as_float(four.y);
      dy[t][2] = __uint_as_float(four.z), dy[t][3] = __uint_as_float(four.w);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const unsigned first = bits[i] & 3u, second = bits[i] >> 2 & 3u;
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) {
        const float w = __uint_as_float(c == first ? stored[i].x : stored[i].y);
        const bool matches = c == first || c == second;
        if (kMany < 8 && !matches) continue;
#pragma unroll
        for (int t = 0; t < kMany; ++t) add_if(matches, sums[t][c], w, dy[t][i]);
      }
    }
  }
}

template <int kMany>
__global__ void __launch_bounds__(kThreads)
    ffma_dx(const __grid_constant__ Params params, const unsigned ranks) {
  __shared__ float4 of_warps[kWarps][kMany][32];
  __shared__ float4 of_block[kMany][32];
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();
  const std::int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned rank = blockIdx.x % ranks;
  const std::int32_t first_group = static_cast<std::int32_t>(blockIdx.x / ranks) * 32,
                     token = static_cast<std::int32_t>(blockIdx.y) * kMany;
  float sums[kMany][4] = {};
  if (first_group + lane < params.groups)
    multiply<kMany>(params, sums, first_group + lane, token, Cut(params.rows, rank, ranks));
#pragma unroll
  for (int t = 0; t < kMany; ++t)
    of_warps[warp][t][lane] = make_float4(sums[t][0], sums[t][1], sums[t][2], sums[t][3]);
  __syncthreads();
  // A thread adds up one group of one token, over the warps and then over the cluster.
  static_assert(kMany * 32 <= kThreads);
  const bool adds = threadIdx.x < kMany * 32;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const auto add = [&](const float4& more) {
    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
  };
  if (adds) {
#pragma unroll
    for (int i = 0; i < kWarps; ++i) add(of_warps[i][warp][lane]);
  }
  if (ranks > 1) {
    if (adds) of_block[warp][lane] = sum;
    ptx::cluster_sync();
    if (adds && rank == 0) {
      sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      for (unsigned other = 0; other < ranks; ++other)
        add(ptx::ld_shared_cluster(&of_block[warp][lane], other));
    }
    ptx::cluster_sync();  // the first thread block may still read the others' sums
  }
  const std::int32_t t = token + warp, group = first_group + lane;
  if (adds && rank == 0 && t < params.tokens && group < params.groups)
    *reinterpret_cast<float4*>(params.out + t * params.out_stride + group * 4) = sum;
}

}  // namespace
}  // namespace sparseloom::kernels::cuda::semi24_ffma

namespace sparseloom::kernels::cuda {

int sm80_semi24_ffma_dx(const MatmulArgs& args, const Semi24View& w, int instance, int ranks) noexcept {
  using namespace semi24_ffma;
  static constexpr void (*kKernels[kTokensCount])(Params, unsigned) = {ffma_dx<1>, ffma_dx<4>, ffma_dx<8>};
  if (args.m == 0 || w.cols == 0) return cudaSuccess;
  if (instance < 0 || instance >= kTokensCount || args.dtype != DType::f32 || args.m > kMostTokens ||
      args.direction != Direction::dx || w.rows == 0 || w.rows % kAtOnce != 0 || w.cols % 8 != 0 ||
      !vector_aligned(args.values, 0) || !vector_aligned(args.a, args.a_stride * 4) ||
      !vector_aligned(args.out, args.out_stride * 4))
    return cudaErrorInvalidValue;
  if (ranks < 1 || ranks > kMostRanks || (ranks & (ranks - 1)) != 0) return cudaErrorInvalidValue;
  const Params params{static_cast<const uint2*>(args.values),
                      w.positions,
                      static_cast<const float*>(args.a),
                      static_cast<float*>(args.out),
                      args.a_stride,
                      args.out_stride,
                      static_cast<std::int32_t>(w.rows),
                      static_cast<std::int32_t>(w.cols),
                      static_cast<std::int32_t>(args.m),
                      static_cast<std::int32_t>(w.groups())};
  const auto tiles = [](std::int64_t size, int tile) {
    return static_cast<unsigned>((size + tile - 1) / tile);
  };
  return launch_kernel({.grid = dim3(tiles(w.cols, kDxInputs) * static_cast<unsigned>(ranks),
                                     tiles(args.m, kTokens[instance])),
                        .block = kThreads,
                        .stream = static_cast<cudaStream_t>(args.stream),
                        .cluster = ranks},
                       kKernels[instance], params, static_cast<unsigned>(ranks));
}

}  // namespace sparseloom::kernels::cuda
