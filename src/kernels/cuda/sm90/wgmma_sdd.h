// The instances of wgmma_sdd.cuh and wgmma_sdd_region.cuh, one dtype per translation unit, so that two cores
// compile them side by side. Contract: launch.h.
#pragma once

#include <cstddef>

#include "kernels/args.h"
#include "kernels/cuda/sm90/cannot_take.h"
#include "kernels/cuda/sm90/tensor_map.h"
#include "kernels/cuda/sm90/wgmma_sdd_region.h"

namespace sparseloom::kernels::cuda::wgmma_sdd {

/// Items of at most this many blocks.
int dw_bf16(const MatmulArgs& args, int most_blocks) noexcept;
int dw_f16(const MatmulArgs& args, int most_blocks) noexcept;

/// f32 with args.tf32, from operands as they are.
int dw_turned(const MatmulArgs& args) noexcept;
std::size_t turned_workspace(const Problem& problem, int multiprocessors) noexcept;

struct Operands {
  TensorMapMatrix dy, x;
};

/// Of fp32, prepared: turned by transpose_tokens.h, or cut by split_tokens.h. workspace: for the parts of cut
/// items.
int dw_tf32(const MatmulArgs& args, const Operands& operands, std::byte* workspace, int most_blocks) noexcept;
int dw_split(const MatmulArgs& args, const Operands& operands, std::byte* workspace,
             int most_blocks) noexcept;

/// By regions, 16-bit: blocks of 16 and 32 on both sides (wgmma_sdd_region.cuh).
int dw_region_bf16(const MatmulArgs& args, const Regions& regions) noexcept;
int dw_region_f16(const MatmulArgs& args, const Regions& regions) noexcept;

}  // namespace sparseloom::kernels::cuda::wgmma_sdd
