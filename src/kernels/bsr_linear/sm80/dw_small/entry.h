// The entry of dw_small, and its launches by dtype. cuda/rows.h has the contract of entries.
#pragma once

#include "kernels/args.h"

namespace sparseloom::kernels::cuda {

/// dW of bf16 and f16 by the schedule's tile and cluster, of at most dw_small::kMostSlice tokens for each
/// thread block of a cluster. Clusters of more than one need the code for sm_90.
int sm80_dw_small(const MatmulArgs& args, const Schedule& schedule) noexcept;

namespace dw_small {

int launch_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int launch_f16(const MatmulArgs& args, const Schedule& schedule) noexcept;

}  // namespace dw_small
}  // namespace sparseloom::kernels::cuda
