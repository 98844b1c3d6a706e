// avx512_select: sixteen tokens on the lanes, in fp32.
#if defined(__x86_64__)

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/bsr_linear/cpu/cell.h"
#include "kernels/bsr_linear/cpu/intrinsics.h"
#include "kernels/bsr_linear/cpu/tile.h"
#include "kernels/semi24_linear/cpu/ops.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/bsr_linear/cpu/avx512/begin.h"
namespace {
#include "kernels/bsr_linear/cpu/generic/unroll-inl.h"
#include "kernels/bsr_linear/cpu/avx2/simd.h"
#include "kernels/bsr_linear/cpu/avx512/vector.h"
#include "kernels/semi24_linear/cpu/generic/select_columns-inl.h"
#include "kernels/semi24_linear/cpu/generic/select-inl.h"
// clang-format on
}  // namespace
#include "kernels/bsr_linear/cpu/avx512/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs select_runs{"avx512_select"};

template <class T>
static constexpr SelectOps kOps{&select_runs, avx512::select_group_bytes<T>, avx512::pack_select_x<T>,
                                avx512::select_units<T>};

const SelectOps* select_avx512(DType dtype) noexcept {
  return dtype == DType::f32    ? &kOps<float>
         : dtype == DType::f16  ? &kOps<F16>
         : dtype == DType::bf16 ? &kOps<Bf16>
                                : nullptr;
}
}  // namespace sparseloom::kernels::cpu

#endif
