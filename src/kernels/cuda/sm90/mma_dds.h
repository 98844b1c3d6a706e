// The instances of mma_dds.cuh, one per translation unit, so that two cores compile them side by side. Contract: launch.h.
#pragma once

#include <cstdint>

#include "kernels/args.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm90/tensor_map.h"

namespace sparseloom::kernels::cuda::mma_dds {

inline constexpr int kSide = 16;  // of a block
inline constexpr int kTileTokens = 64, kTileLines = 32;
/// What TMA cannot address: the caller falls back.
inline constexpr int kCannotMap = -1;

/// The matrices as TMA sees them: [m, reduction], [m, outputs]; 16-bit.
struct Operands {
  TensorMapMatrix x, out, pre, residual;  // pre, residual: as out, when args has them

  explicit Operands(const MatmulArgs& args) {
    const bool dx = args.direction == Direction::dx;
    const std::int64_t outputs = dx ? args.index.cols : args.index.rows;
    x = {args.a, args.dtype, args.m, dx ? args.index.rows : args.index.cols, args.a_stride * 2};
    out = {args.out, args.dtype, args.m, outputs, args.out_stride * 2};
    pre = {dx ? nullptr : args.pre, args.dtype, args.m, outputs, args.pre_stride * 2};
    residual = {dx ? nullptr : args.residual, args.dtype, args.m, outputs, args.residual_stride * 2};
  }
  bool possible() const {
    return tensor_map_possible(x) && tensor_map_possible(out) && (pre.data == nullptr || tensor_map_possible(pre)) &&
           (residual.data == nullptr || tensor_map_possible(residual));
  }
};

int forward_bf16(const MatmulArgs& args) noexcept;
int forward_f16(const MatmulArgs& args) noexcept;
int dx_bf16(const MatmulArgs& args) noexcept;
int dx_f16(const MatmulArgs& args) noexcept;

}  // namespace sparseloom::kernels::cuda::mma_dds
