// Copies of elements whose dtype does not matter but for its size, and sizes of weights.
#pragma once

#include <cstdint>
#include <limits>

#include "sparseloom/dtype.h"

namespace sparseloom::layout {

/// Whether a weight may have so many rows or columns: sizes of its index can then be multiplied in 64 bits.
constexpr bool countable(std::int64_t size) noexcept {
  return size >= 0 && size <= std::numeric_limits<std::int32_t>::max();
}

/// Calls f with a zero of the unsigned type that is as wide as the dtype.
template <class F>
auto with_word(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 1: return f(std::uint8_t{});
    case 2: return f(std::uint16_t{});
    case 4: return f(std::uint32_t{});
    default: return f(std::uint64_t{});
  }
}

}  // namespace sparseloom::layout
