// Weights that are read once, from memory. A strip of 8 outputs reads some hundred bytes of each block, one
// block's size apart, which no hardware prefetcher takes for a stream; but the strips of a block row together
// read it whole, and rows lie one behind the other. So while a row is multiplied the next one is asked for
// from end to end, each strip its share, into all caches: what L1 has no room for lies in L2. 4096 x 4096,
// density .1, blocks of 32, one thread, one token: bf16 11 to 19 GB/s where plain reading reached 19; asking
// for the strip's own pieces 4 KB ahead gained nothing at one token. Into L2 alone takes 1.04 to 1.36 times
// as long (1 to 16 tokens, densities .05 to .5, 2 threads of a Zen 5).
#pragma once

#include <cstdint>

namespace sparseloom::kernels::cpu {

/// Longer rows would push each other out of L2 (1 MiB at least where there is AVX-512) before they are used.
inline constexpr std::int64_t kStreamedRowBytes = 512 << 10;

/// Where the next row begins, or null when this one, of `elements`, is too long to ask for that one beside
/// it.
template <class T>
[[gnu::always_inline]] inline const T* next_row(const T* begin, std::int64_t elements) {
  return elements * static_cast<std::int64_t>(sizeof(T)) <= kStreamedRowBytes ? begin : nullptr;
}

/// Asks for elements [at, at + count) of it. Beyond the last row's end that is an address nobody reads:
/// harmless.
template <class T>
[[gnu::always_inline]] inline void stream_ahead(const T* row, std::int64_t at, std::int64_t count) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  if (row == nullptr) return;
  for (std::int64_t i = 0; i < count; i += kLine) __builtin_prefetch(row + at + i, 0, 3);
}

}  // namespace sparseloom::kernels::cpu
