// Positions of 2:4 weights as bits, sixteen bytes at a time.
#if defined(__x86_64__)

#include "kernels/semi24_linear/cpu/bits.h"

#include <cstring>

#include "kernels/semi24_linear/cpu/expand.h"
#include "kernels/shared/cpu/intrinsics.h"

// clang-format off
#include "kernels/shared/cpu/avx2/begin.h"
namespace {
#include "kernels/semi24_linear/cpu/generic/masks-inl.h"
// clang-format on

void write_bits(const std::uint8_t* positions, std::int64_t count, std::uint8_t* bits) {
  constexpr std::int64_t kBytes = 16;
  alignas(kBytes) std::uint8_t from[kBytes] = {}, to[kBytes];
  std::int64_t i = 0;
  for (; i + kBytes <= count; i += kBytes) {
    masks_of(positions + i, to);
    std::memcpy(bits + i, to, kBytes);
  }
  if (i == count) return;
  std::memcpy(from, positions + i, static_cast<std::size_t>(count - i));
  masks_of(from, to);
  std::memcpy(bits + i, to, static_cast<std::size_t>(count - i));
}
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
void bits_of_positions_avx2(const std::uint8_t* positions, std::int64_t count, std::uint8_t* bits) {
  avx2::write_bits(positions, count, bits);
}
}  // namespace sparseloom::kernels::cpu

#endif
