// Per-block n:m: the elements of some blocks are read to choose, and read again, from the cache, to take
// those that stay.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory_resource>
#include <vector>

#include "sparsifiers/chunk_reader.h"
#include "sparsifiers/sink.h"

namespace sparseloom::sparsifiers {

/// The elements of a block that stay: keys above `key`, and the first `ties` of those equal to it.
template <class K>
struct Cut {
  K key;
  std::int64_t ties;
};

/// The cut below the n largest of `count` keys, 1 <= n <= count; reorders them.
template <class K>
Cut<K> cut_of(K* keys, std::int64_t count, std::int64_t n) {
  // Up to here, comparing every pair is faster than nth_element, whose branches are unpredictable.
  constexpr std::int64_t kPairs = 16;
  if (count > kPairs) {
    std::nth_element(keys, keys + n - 1, keys + count, std::greater<K>());
    const K key = keys[n - 1];
    return {key, n - std::count_if(keys, keys + n, [=](K each) { return each > key; })};
  }
  Cut<K> cut{};
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t above = 0, equal = 0;
    for (std::int64_t j = 0; j < count; ++j) above += keys[j] > keys[i], equal += keys[j] == keys[i];
    if (above < n && n <= above + equal) cut = {keys[i], n - above};
  }
  return cut;
}

template <class T>
void per_block_nm(const Run<T>& run) {
  using K = Key<T>;
  const std::int64_t cols = run.dense.cols, m = std::min(run.spec.m, cols);
  // Small blocks are read several at a time: finding a position in the matrix costs divisions.
  const std::int64_t at_once = std::max<std::int64_t>(256 / m, 1) * m;
  const std::int64_t parts = run.parts(run.dense.rows, cols);
  std::pmr::vector<K> memory(static_cast<std::size_t>(parts * at_once), run.scratch);
  run.for_parts(parts, run.dense.rows, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    K* const keys = memory.data() + part * at_once;
    ChunkReader<T> reader(run.dense);
    for (std::int64_t row = begin; row < end; ++row)
      for (std::int64_t col = 0; col < cols; col += at_once) {
        const std::int64_t first = row * cols + col, last = first + std::min(at_once, cols - col);
        reader.read(first, last, [&](std::int64_t i, T x) { keys[i - first] = key_of(x); });
        Cut<K> cut{};
        std::int64_t next = first;  // start of the next block
        reader.read(first, last, [&](std::int64_t i, T x) {
          if (i == next) {
            const std::int64_t count = std::min(m, last - i);
            cut = cut_of(keys + (i - first), count, std::min(run.spec.n, count));
            next += m;
          }
          const K key = key_of(x);
          const bool tie = key == cut.key && cut.ties > 0;
          cut.ties -= tie;
          run.sink.put(i, x, key > cut.key || tie);
        });
      }
  });
}

}  // namespace sparseloom::sparsifiers
