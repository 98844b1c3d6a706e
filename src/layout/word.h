// Copies of elements whose dtype does not matter but for its size.
#pragma once

#include <cstdint>

#include "sparseloom/dtype.h"

namespace sparseloom::layout {

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
