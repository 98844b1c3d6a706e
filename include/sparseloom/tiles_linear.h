// The verb "tiles_linear": the forward product of a weight of dense, 2:4 and absent tiles (tiles.h), planned
// like BSR's. LinearOf's rows `dense` and `reference` run on the CPU, the fast ones
// (src/kernels/tiles_linear) on Hopper.
#pragma once

#include "sparseloom/linear_of.h"
#include "sparseloom/tiles.h"

namespace sparseloom {

/// LinearOf has plan() and run(); values are one list [stored].
using TilesLinear = LinearOf<Tiles>;

}  // namespace sparseloom
