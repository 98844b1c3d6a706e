// The pass before a backward pass's products on eight lanes of fp32.
#if defined(__x86_64__)

#include "kernels/bsr_linear/cpu/gradient.h"

#include <cstdint>
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
#include "kernels/shared/cpu/activation-inl.h"
#include "kernels/bsr_linear/cpu/generic/gradient-inl.h"
// clang-format on
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {

const GradientOps kGradientAvx2{sizeof(float), avx2::gradient_rows, avx2::gradient_total};

}  // namespace sparseloom::kernels::cpu

#endif
