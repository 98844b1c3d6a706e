// The verb "nmg_linear": the linear layer on n:m:g weights (nmg.h), planned like BSR's. Besides LinearOf's
// rows `dense` and `reference` it has the library's fast ones (src/kernels/nmg_linear).
#pragma once

#include "sparseloom/linear_of.h"
#include "sparseloom/nmg.h"

namespace sparseloom {

/// Values are [chunks, strips, chunk rows, n].
using NmgLinear = LinearOf<Nmg>;

}  // namespace sparseloom
