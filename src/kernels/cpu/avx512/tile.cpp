// Writes finished tiles with AVX-512, in squares of sixteen.
#if defined(__x86_64__)

#include "kernels/cpu/tile.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/cell.h"
#include "kernels/cpu/intrinsics.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/cpu/avx512/begin.h"
namespace {
#include "kernels/cpu/generic/unroll-inl.h"
#include "kernels/cpu/avx2/simd.h"
#include "kernels/cpu/avx512/vector.h"
#include "kernels/cpu/generic/activation-inl.h"
#include "kernels/cpu/generic/tile-inl.h"
// clang-format on
}  // namespace
#include "kernels/cpu/avx512/end.h"

namespace sparseloom::kernels::cpu {
const TileWriter kAvx512Tile = {avx512::kLanes, avx512::write};
}  // namespace sparseloom::kernels::cpu

#endif
