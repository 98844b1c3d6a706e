// The verb "tiles_linear": products of a weight of dense, 2:4 and absent tiles (tiles.h), planned like BSR's.
// The fast rows (src/kernels/tiles_linear) multiply forward and dX on the CPU, and forward on GPUs.
#pragma once

#include "sparseloom/linear_of.h"
#include "sparseloom/tiles.h"

namespace sparseloom {

/// LinearOf has plan() and run(); values are one list [stored].
using TilesLinear = LinearOf<Tiles>;

}  // namespace sparseloom
