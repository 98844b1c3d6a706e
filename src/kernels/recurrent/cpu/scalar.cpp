// The cells unit by unit: for f64, and for CPUs without AVX2.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "kernels/recurrent/cpu/cells.h"
#include "sparseloom/generic/half.h"

namespace sparseloom::kernels::cpu {
namespace {

using core::Bf16;
using core::F16;
using F32 = float;

template <class T>
using C = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class V>
V sigmoid(V x) {
  return V{1} / (V{1} + std::exp(-x));
}
template <class V>
V tangent(V x) {
  return std::tanh(x);
}

template <class T>
struct Lanes {
  static constexpr std::int64_t kUnits = 1;
  static C<T> zero() { return 0; }
  static C<T> load(const T* p, std::int64_t) {
    if constexpr (std::is_arithmetic_v<T>)
      return *p;
    else
      return core::to_f32(*p);
  }
  static void store(T* p, C<T> x, std::int64_t) {
    if constexpr (std::is_arithmetic_v<T>)
      *p = x;
    else if constexpr (std::is_same_v<T, F16>)
      *p = core::to_f16(x);
    else
      *p = core::to_bf16(x);
  }
};

#define SPARSELOOM_CELL inline
#include "kernels/recurrent/cell-inl.h"
#define SPARSELOOM_CELL_DTYPES(name)                                 \
  case DType::f64: return name##_row<double>(cell, row, begin, end); \
  case DType::f16: return name##_row<F16>(cell, row, begin, end);    \
  case DType::bf16:                                                  \
    return name##_row<Bf16>(cell, row, begin, end);
#include "kernels/recurrent/cpu/rows-inl.h"

}  // namespace

const CellOps kCellsScalar{lstm_units, lstm_gradient_units, gru_units, gru_gradient_units};

}  // namespace sparseloom::kernels::cpu
