// The row dense_dw of a layout on the CPU: dW as the dense product dY^T X by the lent GEMM, of which the
// stored elements are kept.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "sparseloom/generic/dense.h"
#include "sparseloom/linear_of.h"

namespace sparseloom::kernels::generic {

inline constexpr const char* kDenseDwCaveat =
    "dY^T X is multiplied whole in every call, and the stored elements are kept";

/// Why the row cannot run, or its prediction: `packed_ns` for keeping an element, `rows` of D at once.
template <class V>
Refusal propose_dense_dw(const LinearProblem& p, double packed_ns, std::int64_t rows, Proposals<V>& out) {
  if (p.direction != Direction::dw) return "supports dw only";
  if (p.strict) return "strict forbids going dense";
  if (is_scaled(p.dtype)) return {"does not support 8-bit operands, the dtype is {}", name_of(p.dtype)};
  if (!p.can_gemm) return "the executor lends no GEMM";
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "has nothing to multiply: a size is 0";
  // Not measured: sparse wins even against the machine's peak, or there is nothing else.
  constexpr double kSlowFlops = 5e9;
  // The product in pieces, or with D through memory, over torch's own: .87 to .95 of its rate on a Zen 4 and
  // a Zen 5.
  constexpr double kOverGemm = 1.06;
  const double flops = p.rates.gemm_flops > 0 ? p.rates.gemm_flops : kSlowFlops;
  const auto product = static_cast<double>(p.m) * static_cast<double>(p.rows * p.cols);
  const double packed_us = 1e-3 * packed_ns * static_cast<double>(p.stored) / std::max(1, p.threads);
  out.add({{},
           2e6 * kOverGemm * product / flops + packed_us,
           static_cast<std::size_t>(rows * p.cols) * size_of(p.dtype)});
  return {};
}

}  // namespace sparseloom::kernels::generic
