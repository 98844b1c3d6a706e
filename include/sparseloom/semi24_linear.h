// The verb "semi24_linear": the linear layer on 2:4 weights (semi24.h), planned like BSR's. Besides
// LinearOf's rows `dense` and `reference` it has the library's fast ones (src/kernels/semi24_linear).
#pragma once

#include "sparseloom/linear_of.h"
#include "sparseloom/semi24.h"

namespace sparseloom {

/// Semi24::unpack, by this machine's vectors.
template <>
SPARSELOOM_API void kernels::generic::unpack_rows<Semi24>(const Semi24View& w, const void* values,
                                                          const MatrixView& dense, std::int64_t begin,
                                                          std::int64_t end);

/// Forward and dX. LinearOf has plan() and run(); values are [rows, 2 ceil(cols / 4)].
using Semi24Linear = LinearOf<Semi24>;

}  // namespace sparseloom
