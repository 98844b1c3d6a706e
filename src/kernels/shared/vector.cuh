// Vectors of 16 (or 8) bytes of elements, for kernels that only copy or map.
#pragma once

#include <cstdint>

namespace sparseloom::kernels::cuda {

template <class Element, int kBytes = 16>
struct alignas(kBytes) Vector {
  static constexpr int kCount = kBytes / sizeof(Element);
  static constexpr int kShift = kCount == 16 ? 4 : kCount == 8 ? 3 : kCount == 4 ? 2 : 1;
  static_assert(kBytes == 16 || kBytes == 8, "one load is 8 or 16 bytes");
  static_assert(kCount == 1 << kShift, "elements have 1, 2, 4 or 8 bytes, and a vector at least two");
  Element element[kCount];
};

/// Whether every row of a matrix may be read and written as Vectors.
inline bool vector_aligned(const void* data, std::int64_t stride_bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride_bytes % 16 == 0;
}

}  // namespace sparseloom::kernels::cuda
