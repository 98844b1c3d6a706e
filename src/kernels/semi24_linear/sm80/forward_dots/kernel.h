// The 8-bit product of 2:4 weights of any size and alignment, on compute capability 8.0 and newer.
#pragma once

#include "sparseloom/matmul_args.h"
#include "sparseloom/semi24.h"

namespace sparseloom::kernels::cuda {

/// Forward of i8 and f8e4m3 as matmul_args.h says, from the positions as they are in memory of record. Queues
/// one launch on args.stream and returns a cudaError_t.
int sm80_semi24_dots(const MatmulArgs& args, const Semi24View& w) noexcept;

}  // namespace sparseloom::kernels::cuda
