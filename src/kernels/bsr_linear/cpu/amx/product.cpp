// The TileOps of AMX for bf16.
#if defined(__x86_64__)

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/bsr_linear/cpu/amx/tile.h"
#include "kernels/shared/cpu/intrinsics.h"

// clang-format off
#include "kernels/shared/cpu/amx/begin.h"
namespace {
#include "kernels/shared/cpu/amx/tiles.h"
#include "kernels/bsr_linear/cpu/amx/tile-inl.h"
}  // namespace
#include "kernels/shared/cpu/end.h"
// clang-format on

namespace sparseloom::kernels::cpu {
const TileOps kAmxTile = amx::kOps;
}  // namespace sparseloom::kernels::cpu

#endif
