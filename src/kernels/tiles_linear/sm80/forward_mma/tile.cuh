// Sizes of a tile, the types, and the kernel's parameters.
//
//   unit     64 x 64 of W: what an entry of the table names; its slot in shared memory has room for a dense
//   one
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/semi24_linear/sm80/forward_mma/tile.cuh"
#include "kernels/shared/ptx/mma.cuh"

namespace sparseloom::kernels::cuda::tiles_mma {

struct Bf16 : semi24_mma::Bf16 {
  static __device__ __forceinline__ void mma_dense(float (&d)[4], const std::uint32_t (&a)[4],
                                                   std::uint32_t b0, std::uint32_t b1) {
    ptx::mma_m16n8k16_bf16(d, a, b0, b1);
  }
};
struct F16 : semi24_mma::F16 {
  static __device__ __forceinline__ void mma_dense(float (&d)[4], const std::uint32_t (&a)[4],
                                                   std::uint32_t b0, std::uint32_t b1) {
    ptx::mma_m16n8k16_f16(d, a, b0, b1);
  }
};

/// kWarpsM x kWarpsK warps, each of which multiplies 32 rows of W by all kTokens tokens, a unit's columns of
/// every K tile. What semi24's multiply and store read has its names there.
template <class Element_, int kWarpsM_, int kWarpsK_, int kTokens_>
struct Tile {
  using Element = Element_;
  static constexpr int kWarpsM = kWarpsM_, kWarpsK = kWarpsK_, kTokens = kTokens_;
  static constexpr int kThreads = kWarpsM * kWarpsK * 32, kRows = kWarpsM * 32, kCols = kWarpsK * 64;
  /// A slot for each 64 rows; of fewer, the tile has a part of one.
  static constexpr int kUnits = (kRows + 63) / 64, kUnitRows = kRows < 64 ? kRows : 64;
  /// Two thread blocks share a multiprocessor of 164 KB, three one of 227.
  static constexpr int kStages = 3;
  /// Per stage and warp along K: the slots, and x's rows of 64.
  static constexpr int kSlotBytes = kUnitRows * 128, kXBytes = kTokens * 128;
  static constexpr int kXAt = kWarpsK * kUnits * kSlotBytes, kStageBytes = kXAt + kWarpsK * kXBytes;
  /// At the end of the tile the sums of each warp along K overwrite the stages.
  static constexpr int kSumsStride = kRows + 4;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static_assert(kWarpsK * kTokens * kSumsStride * 4 <= kSharedBytes, "the sums must fit in the ring");
};

struct Params {
  const std::byte *dense, *halves, *x;
  const std::uint32_t* metadata;
  const std::int32_t* table;
  const std::uint16_t *bias, *residual;
  std::uint16_t* out;
  std::int64_t x_stride, out_stride, residual_stride;  // elements
  std::int32_t rows, cols, tokens;
  std::int32_t table_units;              // TilesView::units
  std::int32_t dense_units, half_units;  // 64 rows each of the dense and of the 2:4 values
  std::int32_t parts;                    // 64 columns each of a tile of W
  Activation activation;
};

}  // namespace sparseloom::kernels::cuda::tiles_mma
