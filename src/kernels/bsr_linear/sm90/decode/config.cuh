// What the parts of sm90_decode (kernel.cuh) share: constants, kernel parameters, and how W lies in shared
// memory.
//
// A block row is cut into strips of 32 outputs (blocks of 16 x 16: of 16, the whole block row). A unit is
// what one block holds of a strip. Identifiers named block_row number the strips of all block rows, row
// numbers block rows, and Params::block_rows counts block rows.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "sparseloom/activation.h"

namespace sparseloom::kernels::cuda::decode90 {

inline constexpr int kStrip = 32;  // outputs of a strip and of a unit: two mma of 16

/// kTokenTiles_: tiles of 8 tokens, the N of an mma. kWide_: blocks have 64 or 128 columns; else they have
/// 32.
template <class Mma_, bool kWide_, int kTokenTiles_>
struct Config {
  using Mma = Mma_;
  using Element = typename Mma::Element;
  static constexpr bool kWide = kWide_;
  static constexpr int kTokenTiles = kTokenTiles_;
  // A warp multiplies 32 rows x 32 k in a step. A stage is what one copy brings: 2 KB of a block of 32
  // columns, which are contiguous, or 32 rows of 128 bytes. The latter are swizzled, since rows 128 bytes
  // apart would share their banks.
  static constexpr int kStageColumns = kWide ? 64 : 32;
  static constexpr int kStageSteps = kStageColumns / 32;
  static constexpr int kStageBytes = kStrip * kStageColumns * 2;
  // 8 KB per warp keep 64 to 128 KB on their way to a multiprocessor; memory at 4.4 TB/s with 1 us of latency
  // needs 33 KB.
  static constexpr int kRingBytes = 8192;
  static constexpr int kStages = kRingBytes / kStageBytes;
  // How many steps ahead X is loaded into registers.
  static constexpr int kAhead = kTokenTiles <= 2 ? 4 : 2;
  // A lane has 128 registers with 16 warps, 168 with 12 and 255 with 8.
  static constexpr int kWarps = kTokenTiles <= 2 ? 16 : kTokenTiles == 4 ? 12 : 8;
  static constexpr int kSlotBytes = kTokenTiles * 8 * kStrip * 4;  // a strip's partial sums, [token][output]

  static_assert(kAhead % kStageSteps == 0, "a step's place in its stage is known at compile time");
  static_assert(kSlotBytes <= kRingBytes, "a warp's last partial sums take the place of its ring");
};

/// Parameters of the kernel, passed by value.
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
  std::int64_t warp_bytes = 0;   // bytes of W for each warp if all took the same, a multiple of 16
  std::int64_t warp_blocks = 0;  // blocks for each warp if all took the same, rounded up
  std::int32_t blocks = 0;
  std::int32_t rows = 0, cols = 0;  // of W
  std::int32_t block_rows = 0;
  int strips_log2 = 0;  // log2 of the strips in a block row
  int bn_log2 = 0;      // log2 of a block's columns
  int m = 0;
  int cluster_log2 = 0;
  int fours_log2 = 0;       // log2 of the groups of four tokens, rounded up
  unsigned share_step = 0;  // 2^32 / clusters, rounded up
  Activation activation = Activation::none;
  bool out_fours = false;  // whether four outputs may be stored at once
};

/// Dynamic shared memory; the row pointers continue behind `crow`.
template <class C>
struct Shared {
  alignas(1024) char rings[C::kWarps][C::kRingBytes];  // the swizzle's pattern needs the alignment
  // Sums of strips that began in an earlier warp.
  float4 heads[C::kWarps][C::kSlotBytes / 16];
  std::uint64_t full[C::kWarps][C::kStages];
  int borders[2];
  alignas(16) std::int32_t crow[1];
};

template <class C>
constexpr std::size_t shared_bytes(int block_rows) {
  return sizeof(Shared<C>) + sizeof(std::int32_t) * static_cast<std::size_t>(block_rows);
}

/// The row of its strip that is row `row` of mma `tile`. With wide blocks, rows g and g + 1 of the mma lie
/// four rows apart in the strip. A load reads swizzled 16-byte chunks of both at a time, and this way the
/// chunks of one row fall into the banks that those of the other leave free.
template <class C>
__host__ __device__ constexpr int line_row(int tile, int row) {
  if constexpr (!C::kWide) return 16 * tile + row;
  return 16 * tile + (row & 1) * 4 + (row >> 1 & 3) + (row & 8);
}

/// Where the partial sums of outputs 4 four .. 4 four + 3 of a token lie in a slot, counted in float4. The
/// XOR puts the lanes of one mma result into different banks.
__host__ __device__ constexpr int slot_four(int token, int four) {
  return token * 8 + (four ^ (2 * (token >> 1 & 3)));
}

}  // namespace sparseloom::kernels::cuda::decode90
