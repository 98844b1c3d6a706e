// Prefetches of weights that are read only once, from DRAM. A strip of 8 outputs reads some hundred bytes of
// each block, one block's size apart, which no hardware prefetcher recognises as a stream. But the strips of
// a block row together read all of it, and block rows are contiguous. So while one block row is multiplied
// the next one is prefetched from end to end, each strip a share of it, into all caches: what does not fit in
// L1 stays in L2. This reached the bandwidth of plain reading (measured). Prefetching the strip's own rows 4
// KB ahead gained nothing at one token, and prefetching into L2 alone was slower. The log has the figures.
#pragma once

#include <cstdint>

namespace sparseloom::kernels::cpu {

/// Longer block rows would evict each other from L2 (at least 1 MiB on machines with AVX-512) before they are
/// used.
inline constexpr std::int64_t kStreamedRowBytes = 512 << 10;

/// `begin`, the start of the next block row, or null if this one, of `elements`, is too long to prefetch the
/// next one beside it.
template <class T>
[[gnu::always_inline]] inline const T* next_row(const T* begin, std::int64_t elements) {
  return elements * static_cast<std::int64_t>(sizeof(T)) <= kStreamedRowBytes ? begin : nullptr;
}

/// Prefetches elements [at, at + count) of the block row at `row`, if not null. Past the last block row this
/// prefetches an address which nothing reads, which is harmless.
template <class T>
[[gnu::always_inline]] inline void stream_ahead(const T* row, std::int64_t at, std::int64_t count) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  if (row == nullptr) return;
  for (std::int64_t i = 0; i < count; i += kLine) __builtin_prefetch(row + at + i, 0, 3);
}

}  // namespace sparseloom::kernels::cpu
