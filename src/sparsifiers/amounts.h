// The meaning of a selection's amount, on the host and for the kernels of a GPU.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "sparsifiers/chunk_reader.h"

namespace sparseloom::sparsifiers {

/// The number of n elements that stay when a fraction is removed; halves are removed.
inline std::int64_t staying(double fraction, std::int64_t n) noexcept {
  return n - std::min(n, static_cast<std::int64_t>(std::floor(fraction * static_cast<double>(n) + 0.5)));
}

/// A threshold in the elements' dtype.
template <class T>
T rounded(double x) noexcept {
  if constexpr (std::is_same_v<T, core::F16>)
    return core::to_f16(x);
  else if constexpr (std::is_same_v<T, core::Bf16>)
    return core::to_bf16(x);
  else
    return static_cast<T>(x);
}

}  // namespace sparseloom::sparsifiers
