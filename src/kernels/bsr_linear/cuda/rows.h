// The registry rows of this family's CUDA kernels. Each is in row.cpp of its method's folder: what it
// refuses, the schedules that it proposes with their predicted times and workspaces, and its launch.
//
// A launch calls the entry that entry.h of the method declares, in plain C++ without CUDA headers. An entry
// that takes the schedule looks up the instance that it names, and returns cudaErrorInvalidValue if there is
// none, before it launches a product; it chooses nothing. All entries are asynchronous, return 0 or a
// cudaError_t, allocate nothing, never wait, and may be captured in a CUDA graph. args.device must be the
// thread's current device. Predictions are in microseconds, with inputs outside L2; they use the problem's
// density and its Facts, not the positions of the blocks.
#pragma once

#include <span>

#include "kernels/bsr_linear/verb.h"

namespace sparseloom::kernels {

/// In order of preference at equal predictions. Empty in a build without CUDA.
std::span<const Kernel> cuda_kernels();
std::span<const ScaledKernel> cuda_scaled_kernels();

namespace cuda {

/// For rows that need all operands aligned, or all that they read.
inline Aligned all_aligned(const Problem&) { return Aligned::all; }
inline Aligned inputs_aligned(const Problem&) { return Aligned::inputs; }

/// The members that every row here sets. Members that few rows set follow by assignment.
inline Kernel cuda_row(const char* name, decltype(Kernel::propose) propose, decltype(Kernel::launch) launch) {
  return {{name, Placement::cuda, propose, launch}};
}

/// A row for 8-bit operands.
inline ScaledKernel scaled_row(const char* name, decltype(ScaledKernel::propose) propose,
                               decltype(ScaledKernel::launch) launch) {
  return {{name, Placement::cuda, propose, launch}};
}

ScaledKernel sm90_wgmma_scaled_row();
ScaledKernel sm90_wgmma_narrow_scaled_row();
ScaledKernel sm80_ffma_scaled_row();

Kernel sm90_wgmma_row();
Kernel sm90_wgmma_narrow_row();
Kernel sm90_wgmma_merged_row();
Kernel sm90_mma_row();
Kernel sm90_mma_merged_row();
Kernel sm80_mma_row();
Kernel sm80_ffma_row();
Kernel sm90_split_row();
Kernel sm90_split_narrow_row();
Kernel sm80_decode_row();
Kernel sm80_decode_staged_row();
Kernel sm90_decode_lines_row();
Kernel sm80_dw_small_row();
Kernel sm90_shares_row();
Kernel sm90_expanded_row();

}  // namespace cuda
}  // namespace sparseloom::kernels
