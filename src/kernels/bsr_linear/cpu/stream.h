// Prefetches of weights that are read only once, from memory. A strip of 8 outputs reads some hundred bytes
// of each block, at a distance of one block's size, which no hardware prefetcher takes for a stream. But the
// strips of a block row together read all of it, and block rows lie one behind the other. So while one block
// row is multiplied the next one is prefetched from end to end, each strip a share of it, into all caches:
// what L1 has no room for stays in L2. Measured, this reaches the bandwidth of plain reading. Prefetching the
// strip's own rows 4 KB ahead gained nothing at one token, and prefetching into L2 alone was slower. The log
// has the figures.
#pragma once

#include <cstdint>

namespace sparseloom::kernels::cpu {

/// Longer block rows would evict each other from L2 (at least 1 MiB on machines with AVX-512) before they are
/// used.
inline constexpr std::int64_t kStreamedRowBytes = 512 << 10;

/// `begin`, where the next block row begins, or null if this one, of `elements`, is too long to prefetch the
/// next one beside it.
template <class T>
[[gnu::always_inline]] inline const T* next_row(const T* begin, std::int64_t elements) {
  return elements * static_cast<std::int64_t>(sizeof(T)) <= kStreamedRowBytes ? begin : nullptr;
}

/// Prefetches elements [at, at + count) of the block row at `row`, if not null. Behind the last block row
/// that prefetches an address which nothing reads, which does no harm.
template <class T>
[[gnu::always_inline]] inline void stream_ahead(const T* row, std::int64_t at, std::int64_t count) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  if (row == nullptr) return;
  for (std::int64_t i = 0; i < count; i += kLine) __builtin_prefetch(row + at + i, 0, 3);
}

}  // namespace sparseloom::kernels::cpu
