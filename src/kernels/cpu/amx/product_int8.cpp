// The TileOps of AMX for int8.
#if defined(__x86_64__)

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/cpu/amx/tile.h"
#include "kernels/cpu/intrinsics.h"

// clang-format off
#include "kernels/cpu/amx/begin.h"
namespace {
#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/amx/tile_int8-inl.h"
}  // namespace
#include "kernels/cpu/amx/end.h"
// clang-format on

namespace sparseloom::kernels::cpu {
const TileOps kAmxInt8Tile = amx::kOps;
}  // namespace sparseloom::kernels::cpu

#endif
