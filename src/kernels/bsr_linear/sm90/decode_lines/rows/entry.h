// The entry of decode_lines, and the instances of kernel.cuh, one translation unit for each dtype so that
// they compile in parallel. cuda/rows.h has the contract of entries.
#pragma once

#include "kernels/args.h"

namespace sparseloom::kernels::cuda {

/// Forward of small batches on Hopper (compute capability 9.0 only), with a group of warps for each strip of
/// 32 outputs of a block row (blocks of 16 x 16: for each block row): bf16 and f16, with blocks of 32, 64 and
/// 128 in any pairing, or of 16 x 16. Takes any number of rows, a multiple of 8 columns, and m <=
/// kDecodeTokens (16 x 16: kNarrowBlockRowTokens). A long block row keeps its warps busy when the others are
/// done, so uneven ones go to other kernels. With a schedule of x_streamed, for many blocks of 16 x 16
/// and more than 16 tokens, X streams through shared memory. Operands are aligned and some block is stored.
inline constexpr int kNarrowBlockRowTokens = 32;
int sm90_decode_lines(const MatmulArgs& args, const Schedule& schedule) noexcept;

namespace decode_lines::rows {

/// Blocks of 32, 64 and 128 on either side, and of 16 x 16.
int launch_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int launch_f16(const MatmulArgs& args, const Schedule& schedule) noexcept;

}  // namespace decode_lines::rows

}  // namespace sparseloom::kernels::cuda
