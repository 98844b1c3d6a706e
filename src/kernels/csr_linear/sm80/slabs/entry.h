// The host entry of slabs. It queues its launches on args.stream, and returns a cudaError_t.
#pragma once

#include <cstddef>

#include "kernels/csr_linear/product.h"
#include "kernels/csr_linear/sm80/slabs/shape.h"

namespace sparseloom::kernels::cuda {

/// Bytes of args.workspace: dX has the values in the order of the columns there.
std::size_t csr_slabs_workspace(Direction direction, std::int64_t stored, DType dtype);

/// `cut`: a place in slabs::kCuts. `most`: the bytes of shared memory that a thread block may take.
int sm80_csr_slabs(const CsrProduct& product, int cut, int most) noexcept;

}  // namespace sparseloom::kernels::cuda
