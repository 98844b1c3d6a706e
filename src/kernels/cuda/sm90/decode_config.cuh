// What the parts of sm90_decode (decode.cuh) agree on: numbers, parameters, and how W lies in shared memory.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda::decode90 {

inline constexpr int kLine = 32;  // outputs of a unit: two mma of 16

/// kTokenTiles_: 8 tokens each, the N of an mma. kWide_: blocks of 64 and 128 columns, else of 32.
template <class Mma_, bool kWide_, int kTokenTiles_>
struct Config {
  using Mma = Mma_;
  using Element = typename Mma::Element;
  static constexpr bool kWide = kWide_;
  static constexpr int kTokenTiles = kTokenTiles_;
  // A warp multiplies 32 rows x 32 k in a step. Its stages are what one copy brings: 2 KB of a block of 32
  // columns, which are contiguous, or 32 rows of 128 bytes, swizzled, since rows 128 bytes apart would share
  // their banks.
  static constexpr int kStageColumns = kWide ? 64 : 32;
  static constexpr int kStageSteps = kStageColumns / 32;
  static constexpr int kStageBytes = kLine * kStageColumns * 2;
  // 8 KB per warp: 64 to 128 KB on their way to a multiprocessor, where 4.4 TB/s for 1 us take 33.
  static constexpr int kRingBytes = 8192;
  static constexpr int kStages = kRingBytes / kStageBytes;
  // Steps that X is asked for ahead of its use, in registers.
  static constexpr int kAhead = kTokenTiles <= 2 ? 4 : 2;
  // Registers: 128 per lane for 16 warps, 168 for 12, 255 for 8.
  static constexpr int kWarps = kTokenTiles <= 2 ? 16 : kTokenTiles == 4 ? 12 : 8;
  static constexpr int kSlotBytes = kTokenTiles * 8 * kLine * 4;  // a line's partial sums, [token][output]

  static_assert(kAhead % kStageSteps == 0, "a step's place in its stage is known at compile time");
  static_assert(kSlotBytes <= kRingBytes, "a warp's last partial sums take the place of its ring");
};

/// By value to the kernel. A line is 32 outputs of a block row, a unit what one block holds of a line;
/// `strips` lines per block row.
struct Params {
  CUtensorMap w;  // [blocks * bm, bn], for wide blocks
  const void* values = nullptr;
  const std::int32_t* crow = nullptr;
  const std::int32_t* col = nullptr;
  const void* x = nullptr;
  const void* bias = nullptr;
  const void* residual = nullptr;
  void* out = nullptr;
  std::int64_t x_stride = 0, out_stride = 0, residual_stride = 0;  // elements
  std::int64_t warp_bytes = 0;   // of W, if all warps took the same; a multiple of 16
  std::int64_t warp_blocks = 0;  // as many, rounded up
  std::int32_t blocks = 0;
  std::int32_t rows = 0, cols = 0;  // of W
  std::int32_t block_rows = 0;
  int strips_log2 = 0;
  int bn_log2 = 0;
  int m = 0;
  int cluster_log2 = 0;
  int fours_log2 = 0;       // of the tokens, in fours, rounded up
  unsigned share_step = 0;  // 2^32 / clusters, rounded up
  Activation activation = Activation::none;
  bool out_fours = false;  // four outputs may be stored at once
};

/// Dynamic shared memory, in this order; row pointers behind it.
template <class C>
struct Shared {
  alignas(1024) char rings[C::kWarps][C::kRingBytes];  // a swizzled stage starts where its pattern does
  float4 heads[C::kWarps][C::kSlotBytes / 16];
  std::uint64_t full[C::kWarps][C::kStages];
  int borders[2];
  alignas(16) std::int32_t crow[1];
};

template <class C>
constexpr std::size_t shared_bytes(int block_rows) {
  return sizeof(Shared<C>) + sizeof(std::int32_t) * static_cast<std::size_t>(block_rows);
}

/// Which row of its line is row `row` of mma `tile`. Wide: rows g and g + 1 of the mma lie four rows apart,
/// so that of the swizzled 16-byte pieces a load reads at a time, those of one row fall into the banks that
/// the other's leave free.
template <class C>
__host__ __device__ constexpr int line_row(int tile, int row) {
  if constexpr (!C::kWide) return 16 * tile + row;
  return 16 * tile + (row & 1) * 4 + (row >> 1 & 3) + (row & 8);
}

/// Where partial sums of outputs 4 four .. + 3 of a token lie in a slot, in float4: lanes of one mma result
/// hit different banks.
__host__ __device__ constexpr int slot_four(int token, int four) {
  return token * 8 + (four ^ (2 * (token >> 1 & 3)));
}

}  // namespace sparseloom::kernels::cuda::decode90
