// Writes finished tiles with AVX-512, in squares of sixteen.
#if defined(__x86_64__)

#include "kernels/shared/cpu/tile.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/shared/cpu/cell.h"
#include "kernels/shared/cpu/intrinsics.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/shared/cpu/avx512/begin.h"
namespace {
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx512/vector.h"
#include "kernels/shared/cpu/activation-inl.h"
#include "kernels/shared/cpu/tile-inl.h"
// clang-format on
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
const TileWriter kAvx512Tile = {avx512::kLanes, avx512::write, avx512::finish};
}  // namespace sparseloom::kernels::cpu

#endif
