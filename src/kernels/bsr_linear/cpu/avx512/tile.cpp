// Writes finished tiles with AVX-512, in squares of sixteen.
#if defined(__x86_64__)

#include "kernels/bsr_linear/cpu/tile.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/bsr_linear/cpu/cell.h"
#include "kernels/bsr_linear/cpu/intrinsics.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/bsr_linear/cpu/avx512/begin.h"
namespace {
#include "kernels/bsr_linear/cpu/generic/unroll-inl.h"
#include "kernels/bsr_linear/cpu/avx2/simd.h"
#include "kernels/bsr_linear/cpu/avx512/vector.h"
#include "kernels/bsr_linear/cpu/generic/activation-inl.h"
#include "kernels/bsr_linear/cpu/generic/tile-inl.h"
// clang-format on
}  // namespace
#include "kernels/bsr_linear/cpu/avx512/end.h"

namespace sparseloom::kernels::cpu {
const TileWriter kAvx512Tile = {avx512::kLanes, avx512::write};
}  // namespace sparseloom::kernels::cpu

#endif
