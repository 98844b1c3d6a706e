// Declares the instances of kernel.cuh and wgmma/dw_regions/kernel.cuh. Each dtype has a translation unit of
// its own, so that they compile in parallel. cuda/rows.h has their contract.
#pragma once

#include <cstddef>

#include "kernels/args.h"
#include "kernels/bsr_linear/sm90/wgmma/dw_regions/entry.h"
#include "kernels/shared/operands/tensor_map.h"

namespace sparseloom::kernels::cuda::wgmma::dw {

/// The 16-bit products. A work item has at most `most_blocks` blocks.
int dw_bf16(const MatmulArgs& args, int most_blocks) noexcept;
int dw_f16(const MatmulArgs& args, int most_blocks) noexcept;

/// fp32 with args.tf32. It transposes the caller's operands into the workspace.
int dw_transposed(const MatmulArgs& args, const Schedule& schedule) noexcept;

struct Operands {
  TensorMapMatrix dy, x;
};

/// The fp32 products of prepared operands: transposed by operands/transpose.h, or converted by
/// wgmma/split_bf16x3/tokens.h. `workspace` is for the partial sums of cut items.
int dw_tf32(const MatmulArgs& args, const Operands& operands, std::byte* workspace, int most_blocks) noexcept;
int dw_bf16x3(const MatmulArgs& args, const Operands& operands, std::byte* workspace,
              int most_blocks) noexcept;

/// The 16-bit products by regions, for block sides of 16 and 32 (wgmma/dw_regions/kernel.cuh).
int dw_region_bf16(const MatmulArgs& args, const Grid& regions) noexcept;
int dw_region_f16(const MatmulArgs& args, const Grid& regions) noexcept;

}  // namespace sparseloom::kernels::cuda::wgmma::dw
