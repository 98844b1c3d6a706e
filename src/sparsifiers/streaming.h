// Streaming selections: each element is decided by itself, in one pass and without memory.
#pragma once

#include <cstdint>

#include "core/rng.h"
#include "sparsifiers/amounts.h"
#include "sparsifiers/chunk_reader.h"
#include "sparsifiers/sink.h"

namespace sparseloom::sparsifiers {

/// Whether random_fraction keeps element i: SplitMix64 in counter mode, so that every element has its own
/// number, whichever thread draws it.
inline bool drawn_to_stay(std::uint64_t seed, std::int64_t i, double fraction) noexcept {
  const std::uint64_t bits = core::mix64(seed + (static_cast<std::uint64_t>(i) + 1) * core::kGoldenGamma);
  return static_cast<double>(bits >> 11) * 0x1p-53 >= fraction;
}

template <class T>
void stream(const Run<T>& run) {
  const std::int64_t n = run.elements(), parts = run.parts(n, 1);
  const auto pass = [&](auto stays) {
    run.for_parts(parts, n, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
      ChunkReader<T> reader(run.dense);
      reader.read(begin, end, [&](std::int64_t i, T x) { run.sink.put(i, x, stays(i, x)); });
    });
  };
  if (run.spec.selection == Selection::random_fraction)
    return pass([&](std::int64_t i, T) { return drawn_to_stay(run.spec.seed, i, run.spec.amount); });
  if (run.spec.selection == Selection::scalar_threshold) {
    const Key<T> threshold = key_of(rounded<T>(run.spec.amount));
    return pass([=](std::int64_t, T x) { return key_of(x) > threshold; });
  }
  pass([](std::int64_t, T) { return true; });
}

}  // namespace sparseloom::sparsifiers
