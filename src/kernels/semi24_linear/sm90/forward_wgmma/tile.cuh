// Sizes of a tile, and the layout of shared memory.
//
// A K tile is 128 columns of W, or 256 of 8 bits: the stored values of a row are the 128 bytes of TMA's
// swizzle. The x for them are two halves of 128 bytes per token. Weights and x have separate rings, so that
// x, which takes more space, is copied and released in halves.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/semi24_linear/sm80/metadata/metadata.h"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/sm90/registers.cuh"
#include "kernels/shared/ptx/sm90/wgmma.cuh"
#include "sparseloom/activation.h"

namespace sparseloom::kernels::cuda::semi24 {

/// A tile of 128 kBlocks rows of W x kTokens_ tokens; each of two consumer warpgroups has kBlocks blocks of
/// 64 rows. The rings hold kStages_ K tiles of weights, and twice as many halves of x or kXStages_ of them.
template <class Element_, int kBlocks_, int kTokens_, int kStages_, int kXStages_ = 2 * kStages_>
struct Tile {
  using Element = Element_;
  static constexpr int kConsumers = 2, kThreads = (kConsumers + 1) * 128;
  static constexpr int kBlocks = kBlocks_, kRows = kConsumers * kBlocks * 64, kTokens = kTokens_;
  static constexpr int kCols = 256 / Element::kBytes;
  static constexpr int kStages = kStages_, kXStages = kXStages_;

  static constexpr int kMetadataTiles = kRows / static_cast<int>(kMetadataRows);
  static constexpr int kMetadataAt = kRows * 128,
                       kMetadataBytes = kCols * 8;  // of a metadata tile of 64 rows
  static constexpr int kStageBytes = kMetadataAt + kMetadataTiles * kMetadataBytes;
  static constexpr int kXStageBytes = kTokens * 128;
  static_assert(kStageBytes % 1024 == 0 && kXStageBytes % 1024 == 0,
                "swizzled tiles start at multiples of 1024");

  static constexpr int kStoreTokens = 32, kStoreBytes = kStoreTokens * 128, kStagingBuffers = 2;

  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
  static_assert(kConsumers * kConsumerRegisters + kProducerRegisters <=
                    ptx::registers_at_launch(kThreads) * (kConsumers + 1),
                "claimed registers must not exceed the released ones");

  static constexpr std::uint64_t kDescriptor = ptx::wgmma_descriptor(ptx::Swizzle::bytes128, 1024, 0);
};

/// A thread's sums: kBlocks blocks of 64 rows x kTokens tokens of its warpgroup.
template <class T>
using Sums = typename T::Element::Sum[T::kBlocks][T::kTokens / 2];

struct Params {
  CUtensorMap values, x, out, residual;  // out, residual: used by the persistent kernel only
  const std::byte* metadata;
  const void* bias;
  // For 8-bit operands: their scales, per token and row or one for all, and out if it is fp32, otherwise
  // null.
  const float *x_scale, *w_scale;
  float* out_f32;
  std::int64_t out_stride;
  std::int32_t rows, tokens;
  std::int32_t metadata_rows, k_tiles;  // tiles of the metadata
  // The persistent kernel's walk: tiles of tokens and of rows, and row tiles per chunk.
  unsigned token_tiles, row_tiles, chunk, tiles;
  Activation activation;
  bool adds_residual, x_scale_each, w_scale_each, is_f32;  // is_f32: out and bias
};

template <class T>
struct Rings {
  alignas(1024) std::byte weights[T::kStages][T::kStageBytes];
  alignas(1024) std::byte x[T::kXStages][T::kXStageBytes];
};
template <class T>
struct Barriers {
  alignas(8) std::uint64_t full[T::kStages], empty[T::kStages], x_full[T::kXStages], x_empty[T::kXStages];
};

}  // namespace sparseloom::kernels::cuda::semi24
