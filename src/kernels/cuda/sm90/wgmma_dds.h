// The instances of wgmma_dds.cuh, one per translation unit, so that two cores compile them side by side. Contract: launch.h.
#pragma once

#include "kernels/args.h"

namespace sparseloom::kernels::cuda::wgmma_dds {

/// What TMA cannot address: the caller falls back.
constexpr int kCannotMap = -1;

/// Whether 16-bit blocks of side 32 have slabs of their own (Narrowed): where few lie next to one another.
inline bool narrow_slabs(BlockShape block, std::int64_t blocks, std::int64_t grid) {
  return block.rows == 32 && block.cols == 32 && static_cast<double>(blocks) < 0.15 * static_cast<double>(grid);
}

int forward_bf16(const MatmulArgs& args) noexcept;
int forward_f16(const MatmulArgs& args) noexcept;
int forward_tf32(const MatmulArgs& args) noexcept;
int forward_e4m3_bf16(const MatmulArgs& args) noexcept;
int forward_e4m3_f32(const MatmulArgs& args) noexcept;
int dx_bf16(const MatmulArgs& args) noexcept;
int dx_f16(const MatmulArgs& args) noexcept;
int dx_tf32(const MatmulArgs& args) noexcept;

}  // namespace sparseloom::kernels::cuda::wgmma_dds
