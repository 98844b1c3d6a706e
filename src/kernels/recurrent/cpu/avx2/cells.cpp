// The cells on eight lanes of fp32.
#if defined(__x86_64__)

#include "kernels/recurrent/cpu/cells.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "kernels/shared/cpu/cell.h"
#include "kernels/shared/cpu/intrinsics.h"
#include "sparseloom/activation.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/shared/cpu/avx2/begin.h"
namespace {
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/activation-inl.h"
#include "kernels/recurrent/cpu/avx2/lanes-inl.h"
#define SPARSELOOM_CELL [[gnu::always_inline]] inline
#include "kernels/recurrent/cell-inl.h"
#define SPARSELOOM_CELL_DTYPES(name)                                    \
  case DType::f16: return name##_row<cpu::F16>(cell, row, begin, end); \
  case DType::bf16: return name##_row<cpu::Bf16>(cell, row, begin, end);
#include "kernels/recurrent/cpu/rows-inl.h"
// clang-format on
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {

const CellOps kCellsAvx2{avx2::lstm_units, avx2::lstm_gradient_units, avx2::gru_units,
                         avx2::gru_gradient_units};

}  // namespace sparseloom::kernels::cpu

#endif
