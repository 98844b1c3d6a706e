// Writes finished tiles with AVX2, in squares of eight.
#if defined(__x86_64__)

#include "kernels/shared/cpu/tile.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/shared/cpu/cell.h"
#include "kernels/shared/cpu/intrinsics.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/shared/cpu/avx2/begin.h"
namespace {
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx2/vector.h"
#include "kernels/shared/cpu/activation-inl.h"
#include "kernels/shared/cpu/tile-inl.h"
// clang-format on

template <class T>
void write_run_as(const float* tile, const float* partial, std::int64_t n, T* out) {
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const Vec x = load(tile + i);
    narrow(out + i, partial ? load(partial + i) + x : x);
  }
}
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
const TileWriter kAvx2Tile = {avx2::kLanes, avx2::write, avx2::finish};

void write_run(const float* tile, const float* partial, std::int64_t n, DType dtype, void* out) {
  switch (dtype) {
    case DType::f16: return avx2::write_run_as(tile, partial, n, static_cast<F16*>(out));
    case DType::bf16: return avx2::write_run_as(tile, partial, n, static_cast<Bf16*>(out));
    default: return avx2::write_run_as(tile, partial, n, static_cast<float*>(out));
  }
}
}  // namespace sparseloom::kernels::cpu

#endif
