// out [m, rows] = act(x [m, cols] W^T + bias) + residual with W in 2:4, by mma.sp. cp.async fills a ring of
// stages with K tiles of W's values and of x; rows of W lie along M and tokens along N.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/semi24_linear/sm80/forward_mma/tile.cuh"
#include "kernels/shared/epilogue/activation.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/cp_async.cuh"
#include "kernels/shared/ptx/griddepcontrol.cuh"
#include "kernels/shared/ptx/ld.cuh"
#include "kernels/shared/ptx/ldmatrix.cuh"

namespace sparseloom::kernels::cuda::semi24_mma {

/// Copies 8 elements of a row of `width` elements, from `column` on, and writes zeros past the row. aligned:
/// by 16 bytes at a time.
__device__ __forceinline__ void copy_chunk(bool aligned, std::uint32_t to, const std::byte* row,
                                           std::int64_t column, std::int64_t width, bool exists) {
  const std::int64_t left = exists ? width - column : 0;
  if (aligned) {
    const auto bytes = static_cast<std::uint32_t>(left <= 0 ? 0 : left >= 8 ? 16 : left * 2);
    ptx::cp_async_cg(to, bytes > 0 ? row + column * 2 : row, bytes);
    return;
  }
  std::uint32_t words[4] = {};
  const auto* const elements = reinterpret_cast<const std::uint16_t*>(row);
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (i < left) words[i / 2] |= std::uint32_t{ptx::ld_global(elements + column + i)} << (i % 2 * 16);
  ptx::st_shared_v4_b32(to, words);
}

/// Starts the copies of K tile k_tile. The 16-byte chunks of a row are permuted, so that ldmatrix uses all
/// banks.
template <class T>
__device__ __forceinline__ void copy_stage(const Params& params, std::uint32_t stage, std::int32_t row,
                                           std::int32_t token, std::int32_t k_tile) {
  constexpr int kWeightChunks = T::kWarpsK * T::kRows * 4, kXChunks = T::kWarpsK * T::kTokens * 8;
  static_assert(kWeightChunks % T::kThreads == 0 && kXChunks % T::kThreads == 0,
                "all threads copy the same number of chunks");
#pragma unroll
  for (int i = 0; i < kWeightChunks / T::kThreads; ++i) {
    const int at = i * T::kThreads + static_cast<int>(threadIdx.x);
    // Neighbouring lanes read along a row.
    const int chunk = at % 4, warp_k = at / 4 % T::kWarpsK, r = at / 4 / T::kWarpsK;
    const bool exists = row + r < params.rows;
    copy_chunk(params.aligned, stage + warp_k * T::kWeightBytes + r * 64 + (chunk ^ (r / 2 % 4)) * 16,
               params.values + (exists ? row + r : 0) * params.stored * 2,
               std::int64_t{k_tile} * (T::kCols / 2) + warp_k * 32 + chunk * 8, params.stored, exists);
  }
#pragma unroll
  for (int i = 0; i < kXChunks / T::kThreads; ++i) {
    const int at = i * T::kThreads + static_cast<int>(threadIdx.x);
    const int chunk = at % 8, warp_k = at / 8 % T::kWarpsK, t = at / 8 / T::kWarpsK;
    const bool exists = token + t < params.tokens;
    copy_chunk(params.aligned, stage + T::kXAt + warp_k * T::kXBytes + t * 128 + (chunk ^ (t % 8)) * 16,
               params.x + (exists ? token + t : 0) * params.x_stride * 2,
               std::int64_t{k_tile} * T::kCols + warp_k * 64 + chunk * 8, params.cols, exists);
  }
}

/// A warp's metadata of K tile k_tile, for its two blocks of 16 rows.
template <class T>
__device__ __forceinline__ void load_metadata(const Params& params, std::uint32_t (&metadata)[2],
                                              std::int32_t row, std::int32_t k_tile, int warp_k) {
  // Past the matrix W is zero, whatever the metadata says, as long as it is valid.
  const std::int32_t col = k_tile * T::kWarpsK + warp_k,  // in units of 64
      tile_col = min(col / 2, params.metadata_cols - 1), tile_row = min(row / 64, params.metadata_rows - 1);
  const std::uint32_t* const tile =
      params.metadata + (std::int64_t{tile_row} * params.metadata_cols + tile_col) * 256;
#pragma unroll
  for (int i = 0; i < 2; ++i)
    metadata[i] =
        ptx::ld_global(tile + (row / 16 % 4 + i) * 64 + static_cast<int>(threadIdx.x) % 32 * 2 + col % 2);
}

/// sums += W x^T over the warp's 64 columns of a stage.
template <class T>
__device__ __forceinline__ void multiply(float (&sums)[2][T::kTokens / 8][4], std::uint32_t weights,
                                         std::uint32_t x, const std::uint32_t (&metadata)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto step = [&]<int kStep>() {
    std::uint32_t a[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = i * 16 + lane % 16, chunk = kStep * 2 + lane / 16;
      ptx::ldmatrix_x4(a[i], weights + r * 64 + (chunk ^ (r / 2 % 4)) * 16);
    }
#pragma unroll
    for (int n = 0; n < T::kTokens / 8; ++n) {
      const int t = n * 8 + lane % 8, chunk = kStep * 4 + lane / 8;
      std::uint32_t b[4];
      ptx::ldmatrix_x4(b, x + t * 128 + (chunk ^ (t % 8)) * 16);
#pragma unroll
      for (int i = 0; i < 2; ++i) T::Element::template mma<kStep>(sums[i][n], a[i], b, metadata[i]);
    }
  };
  step.template operator()<0>();
  step.template operator()<1>();
}

/// Writes the tile's outputs. Params has what the epilogue reads, by its names here.
template <class T, class Params>
__device__ __forceinline__ void store(const Params& params, const float (&sums)[2][T::kTokens / 8][4],
                                      std::byte* shared, std::int32_t row, std::int32_t token) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_k = warp % T::kWarpsK, own_row = warp / T::kWarpsK * 32;
  // Exchange the sums, so that outputs of one token are written contiguously.
  ptx::cp_async_wait<0>();
  __syncthreads();
  auto* const all = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int n = 0; n < T::kTokens / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int t = n * 8 + lane % 4 * 2 + e % 2, r = own_row + i * 16 + e / 2 * 8 + lane / 4;
        all[(warp_k * T::kTokens + t) * T::kSumsStride + r] = sums[i][n][e];
      }
    }
  }
  __syncthreads();
  const int within = static_cast<int>(threadIdx.x) % T::kRows;
  const std::int32_t output = row + within;
  if (output >= params.rows) return;
  const float bias = params.bias != nullptr ? T::Element::to_f32(ptx::ld_global(params.bias + output)) : 0.0f;
  for (int t = static_cast<int>(threadIdx.x) / T::kRows; t < T::kTokens; t += T::kThreads / T::kRows) {
    if (token + t >= params.tokens) break;
    float y[1] = {0.0f};
#pragma unroll
    for (int p = 0; p < T::kWarpsK; ++p) y[0] += all[(p * T::kTokens + t) * T::kSumsStride + within];
    y[0] += bias;
    epilogue::activate(params.activation, y);
    if (params.residual != nullptr)
      y[0] +=
          T::Element::to_f32(ptx::ld_global(params.residual + (token + t) * params.residual_stride + output));
    params.out[(token + t) * params.out_stride + output] = T::Element::round(y[0]);
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads) semi24_mma_kernel(const Params params) {
  extern __shared__ __align__(128) std::byte shared_bytes[];
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();
  const std::uint32_t ring = ptx::shared_address(shared_bytes);
  const std::int32_t row = static_cast<std::int32_t>(blockIdx.x) * T::kRows,
                     token = static_cast<std::int32_t>(blockIdx.y) * T::kTokens;
  const std::int32_t k_tiles = (params.cols + T::kCols - 1) / T::kCols;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_k = warp % T::kWarpsK, own_row = warp / T::kWarpsK * 32;

  float sums[2][T::kTokens / 8][4] = {};
#pragma unroll
  for (int k = 0; k < T::kStages - 1; ++k) {
    if (k < k_tiles) copy_stage<T>(params, ring + k * T::kStageBytes, row, token, k);
    ptx::cp_async_commit();
  }
  std::uint32_t next[2];
  load_metadata<T>(params, next, row + own_row, 0, warp_k);
#pragma unroll 1
  for (std::int32_t k = 0; k < k_tiles; ++k) {
    ptx::cp_async_wait<T::kStages - 2>();
    __syncthreads();
    const std::int32_t ahead = k + T::kStages - 1;
    if (ahead < k_tiles) copy_stage<T>(params, ring + ahead % T::kStages * T::kStageBytes, row, token, ahead);
    ptx::cp_async_commit();
    const std::uint32_t metadata[2] = {next[0], next[1]};
    if (k + 1 < k_tiles) load_metadata<T>(params, next, row + own_row, k + 1, warp_k);
    const std::uint32_t stage = ring + k % T::kStages * T::kStageBytes;
    multiply<T>(sums, stage + warp_k * T::kWeightBytes + own_row * 64, stage + T::kXAt + warp_k * T::kXBytes,
                metadata);
  }
  store<T>(params, sums, shared_bytes, row, token);
}

}  // namespace sparseloom::kernels::cuda::semi24_mma
