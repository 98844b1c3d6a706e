// 16 bytes of elements, for kernels that only copy or map.
#pragma once

#include <cstdint>

namespace sparseloom::kernels::cuda {

template <class Element>
struct alignas(16) Vector {
  static constexpr int kShift = sizeof(Element) == 2 ? 3 : sizeof(Element) == 4 ? 2 : 1;
  static constexpr int kCount = 1 << kShift;
  static_assert(kCount * sizeof(Element) == 16, "elements of 2, 4 or 8 bytes");
  Element element[kCount];
};

/// Whether every row of a matrix may be read and written as Vectors.
inline bool vector_aligned(const void* data, std::int64_t stride_bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride_bytes % 16 == 0;
}

}  // namespace sparseloom::kernels::cuda
