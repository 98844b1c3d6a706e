// avx512_bitmap: sixteen lanes of fp32, to which VEXPANDPS moves the values. VPEXPANDW (VBMI2) before they
// are widened would take as many instructions.
#if defined(__x86_64__)

#include "kernels/bitmap_linear/cpu/expand.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/check.h"
#include "kernels/shared/cpu/cell.h"
#include "kernels/shared/cpu/intrinsics.h"
#include "kernels/shared/cpu/tile.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/shared/cpu/avx512/begin.h"
namespace {
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx512/vector.h"
#include "kernels/shared/cpu/avx512/expand-inl.h"
#include "kernels/shared/cpu/chain-inl.h"
#include "kernels/bitmap_linear/cpu/avx512/expanded-inl.h"
#include "kernels/bitmap_linear/cpu/generic/expand-inl.h"
#include "kernels/bitmap_linear/cpu/generic/lanes-inl.h"
#include "kernels/bitmap_linear/cpu/generic/cells-inl.h"
#include "kernels/bitmap_linear/cpu/generic/tokens-inl.h"
#include "kernels/bitmap_linear/cpu/generic/forward-inl.h"
#include "kernels/bitmap_linear/cpu/generic/dx-inl.h"
// clang-format on

void forward_bitmap(const cpu::BitmapJob& job, std::int64_t begin, std::int64_t end) {
  switch (job.args.dtype) {
    case DType::f16: return forward_expand<Lanes<cpu::F16>>(job, begin, end);
    case DType::bf16: return forward_expand<Lanes<cpu::Bf16>>(job, begin, end);
    default: return forward_expand<Lanes<float>>(job, begin, end);
  }
}
void dx_bitmap(const cpu::BitmapJob& job, std::int64_t begin, std::int64_t end, const cpu::BitmapRoom& room) {
  switch (job.args.dtype) {
    case DType::f16: return dx_expand<Lanes<cpu::F16>>(job, begin, end, room);
    case DType::bf16: return dx_expand<Lanes<cpu::Bf16>>(job, begin, end, room);
    default: return dx_expand<Lanes<float>>(job, begin, end, room);
  }
}
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs bitmap_runs{"avx512_bitmap"};

const BitmapOps kBitmapAvx512{&bitmap_runs,           sizeof(float),     avx512::widen_bitmap,
                              avx512::forward_bitmap, avx512::dx_bitmap, avx512::transpose_cells};
}  // namespace sparseloom::kernels::cpu

#endif
