// out [m, rows] = act(x [m, cols] W^T + bias) + residual with W of tiles, bf16 and f16. cp.async fills a ring
// of stages with K tiles of W's units and of x; rows of W lie along M and tokens along N. One loop multiplies
// a dense unit by mma and a 2:4 one by mma.sp, into the same sums.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/semi24_linear/sm80/forward_mma/kernel.cuh"
#include "kernels/tiles_linear/sm80/forward_mma/tile.cuh"
#include "sparseloom/tiles.h"

namespace sparseloom::kernels::cuda::tiles_mma {

// What an entry says, as TilesView's functions of these names, which the device cannot call.
__device__ __forceinline__ bool is_half(std::int32_t entry) { return (entry & 1) != 0; }
__device__ __forceinline__ std::int32_t column_part(std::int32_t entry) { return entry >> 1 & 1; }
__device__ __forceinline__ std::int32_t unit_row(std::int32_t entry) { return entry >> 2; }  // of 64 rows

/// The entry for a row and 64 columns. One outside of the values counts as absent, since nothing on a GPU has
/// checked the table.
__device__ __forceinline__ std::int32_t entry_at(const Params& params, std::int32_t row, std::int32_t unit) {
  if (row >= params.rows || unit >= params.table_units) return -1;
  const std::int32_t entry = ptx::ld_global(
      params.table +
      (std::int64_t{row / TilesView::kGroupRows} * params.table_units + unit) * TilesView::kGroup +
      row % TilesView::kGroupRows / 64);
  const bool exists = entry >= 0 &&
                      unit_row(entry) < (is_half(entry) ? params.half_units : params.dense_units) &&
                      column_part(entry) < params.parts;
  return exists ? entry : -1;
}

/// The warp along K for which a thread copies.
template <class T>
__device__ __forceinline__ int copied_warp() {
  return static_cast<int>(threadIdx.x) / 8 % T::kWarpsK;
}

/// The entries of the units that a thread copies of a K tile.
template <class T>
struct Copied {
  std::int32_t entry[T::kUnits];

  __device__ __forceinline__ void load(const Params& params, std::int32_t row, std::int32_t k_tile) {
#pragma unroll
    for (int i = 0; i < T::kUnits; ++i)
      entry[i] = entry_at(params, row + i * 64, k_tile * T::kWarpsK + copied_warp<T>());
  }
};

/// Starts the copies of K tile k_tile: the stored units, and x where one of them multiplies it. The 16-byte
/// chunks of a row are permuted, so that ldmatrix uses all banks.
template <class T>
__device__ __forceinline__ void copy_stage(const Params& params, const Copied<T>& copied, std::uint32_t stage,
                                           std::int32_t row, std::int32_t token, std::int32_t k_tile) {
  constexpr int kChunks = 8, kRowsAtOnce = T::kThreads / kChunks / T::kWarpsK;
  static_assert(T::kUnitRows % kRowsAtOnce == 0 && T::kTokens % kRowsAtOnce == 0,
                "all threads copy the same number of chunks");
  // Neighbouring lanes read along a row.
  const int chunk = static_cast<int>(threadIdx.x) % kChunks, warp_k = copied_warp<T>(),
            first = static_cast<int>(threadIdx.x) / kChunks / T::kWarpsK;
  bool any = false;
#pragma unroll
  for (int unit = 0; unit < T::kUnits; ++unit) {
    const std::int32_t entry = copied.entry[unit];
    if (entry < 0) continue;
    any = true;
    const bool half = is_half(entry);
    if (half && chunk >= kChunks / 2) continue;
    const std::int64_t stride = params.parts * (half ? 64 : 128);  // bytes
    const std::byte* const from = (half ? params.halves : params.dense) +
                                  (std::int64_t{unit_row(entry)} * 64 + row % 64) * stride +
                                  column_part(entry) * (half ? 64 : 128) + chunk * 16;
    const std::uint32_t slot = stage + (warp_k * T::kUnits + unit) * T::kSlotBytes;
#pragma unroll
    for (int i = 0; i < T::kUnitRows / kRowsAtOnce; ++i) {
      const int r = first + i * kRowsAtOnce;
      const std::uint32_t to = half ? r * 64 + (chunk ^ (r / 2 % 4)) * 16 : r * 128 + (chunk ^ (r % 8)) * 16;
      ptx::cp_async_cg(slot + to, from + r * stride, 16);
    }
  }
  if (!any) return;
#pragma unroll
  for (int i = 0; i < T::kTokens / kRowsAtOnce; ++i) {
    const int t = first + i * kRowsAtOnce;
    const bool exists = token + t < params.tokens;
    semi24_mma::copy_chunk(true, stage + T::kXAt + warp_k * T::kXBytes + t * 128 + (chunk ^ (t % 8)) * 16,
                           params.x + (exists ? token + t : 0) * params.x_stride * 2,
                           std::int64_t{k_tile} * T::kCols + warp_k * 64 + chunk * 8, params.cols, exists);
  }
}

/// A warp's metadata of a unit, for its two blocks of 16 rows; of another one than 2:4, nothing.
__device__ __forceinline__ void load_metadata(const Params& params, std::uint32_t (&metadata)[2],
                                              std::int32_t row, std::int32_t entry) {
  if (entry < 0 || !is_half(entry)) return;
  const std::uint32_t* const unit =
      params.metadata + (std::int64_t{unit_row(entry)} * params.parts + column_part(entry)) * 128;
#pragma unroll
  for (int i = 0; i < 2; ++i)
    metadata[i] = ptx::ld_global(unit + (row / 16 % 4 + i) * 32 + static_cast<int>(threadIdx.x) % 32);
}

/// sums += W x^T over the warp's 32 rows of a dense unit; the counterpart of semi24_mma::multiply.
template <class T>
__device__ __forceinline__ void multiply_dense(float (&sums)[2][T::kTokens / 8][4], std::uint32_t weights,
                                               std::uint32_t x) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 0; step < 2; ++step) {  // of 32 columns
    std::uint32_t a[2][2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int r = i * 16 + lane % 16, chunk = step * 4 + k * 2 + lane / 16;
        ptx::ldmatrix_x4(a[i][k], weights + r * 128 + (chunk ^ (r % 8)) * 16);
      }
    }
#pragma unroll
    for (int n = 0; n < T::kTokens / 8; ++n) {
      const int t = n * 8 + lane % 8, chunk = step * 4 + lane / 8;
      std::uint32_t b[4];
      ptx::ldmatrix_x4(b, x + t * 128 + (chunk ^ (t % 8)) * 16);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        T::Element::mma_dense(sums[i][n], a[i][0], b[0], b[1]);
        T::Element::mma_dense(sums[i][n], a[i][1], b[2], b[3]);
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads) tiles_mma_kernel(const Params params) {
  extern __shared__ __align__(128) std::byte shared_bytes[];
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_begin();
  const std::uint32_t ring = ptx::shared_address(shared_bytes);
  const std::int32_t row = static_cast<std::int32_t>(blockIdx.x) * T::kRows,
                     token = static_cast<std::int32_t>(blockIdx.y) * T::kTokens;
  const std::int32_t k_tiles = (params.cols + T::kCols - 1) / T::kCols;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_k = warp % T::kWarpsK, own_row = warp / T::kWarpsK * 32;
  const auto own_entry = [&](std::int32_t k) {
    return entry_at(params, row + own_row, k * T::kWarpsK + warp_k);
  };

  float sums[2][T::kTokens / 8][4] = {};
  Copied<T> copied;
#pragma unroll
  for (int k = 0; k < T::kStages - 1; ++k) {
    copied.load(params, row, k);
    if (k < k_tiles) copy_stage<T>(params, copied, ring + k * T::kStageBytes, row, token, k);
    ptx::cp_async_commit();
  }
  // What the loop reads of the table is loaded a K tile or two before, since it waits for memory.
  copied.load(params, row, T::kStages - 1);
  std::int32_t entry = own_entry(0), next_entry = own_entry(1);
  std::uint32_t metadata[2] = {};
  load_metadata(params, metadata, row + own_row, entry);
#pragma unroll 1
  for (std::int32_t k = 0; k < k_tiles; ++k) {
    ptx::cp_async_wait<T::kStages - 2>();
    __syncthreads();
    const std::int32_t ahead = k + T::kStages - 1;
    if (ahead < k_tiles)
      copy_stage<T>(params, copied, ring + ahead % T::kStages * T::kStageBytes, row, token, ahead);
    ptx::cp_async_commit();
    copied.load(params, row, ahead + 1);
    std::uint32_t next[2] = {};
    load_metadata(params, next, row + own_row, next_entry);
    const std::int32_t after_next = own_entry(k + 2);
    const std::uint32_t stage = ring + k % T::kStages * T::kStageBytes;
    const std::uint32_t slot = stage + (warp_k * T::kUnits + own_row / 64) * T::kSlotBytes,
                        x = stage + T::kXAt + warp_k * T::kXBytes;
    if (entry >= 0) {
      if (is_half(entry))
        semi24_mma::multiply<T>(sums, slot + own_row % 64 * 64, x, metadata);
      else
        multiply_dense<T>(sums, slot + own_row % 64 * 128, x);
    }
    entry = next_entry, next_entry = after_next;
    metadata[0] = next[0], metadata[1] = next[1];
  }
  semi24_mma::store<T>(params, sums, shared_bytes, row, token);
}

}  // namespace sparseloom::kernels::cuda::tiles_mma
