// avx512_grouped: the grouped kernels by this instruction set.
#if defined(__x86_64__)

#include "kernels/nmg_linear/cpu/grouped.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <type_traits>
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
#include "kernels/nmg_linear/cpu/generic/grouped-inl.h"
#include "kernels/nmg_linear/cpu/avx512/outputs_unpack-inl.h"
#include "kernels/nmg_linear/cpu/avx512/outputs-inl.h"
#include "kernels/nmg_linear/cpu/generic/float_cells-inl.h"
#include "kernels/nmg_linear/cpu/generic/dx-inl.h"
#include "kernels/nmg_linear/cpu/generic/dw-inl.h"
}  // namespace
#include "kernels/shared/cpu/end.h"
// clang-format on

namespace sparseloom::kernels::cpu {
static constinit Runs grouped_runs{"avx512_grouped"};

template <class T>
static GroupedOps ops_of() {
  GroupedOps ops = avx512::grouped_ops<T>(&grouped_runs);
  ops.outputs = avx512::grouped_outputs<T, avx512::FloatInputs<T>>;
  return ops;
}

const GroupedOps* grouped_avx512(DType dtype) noexcept {
  static const GroupedOps f32 = ops_of<float>(), f16 = ops_of<F16>(), bf16 = ops_of<Bf16>();
  return dtype == DType::f32 ? &f32 : dtype == DType::f16 ? &f16 : dtype == DType::bf16 ? &bf16 : nullptr;
}
}  // namespace sparseloom::kernels::cpu

#endif
