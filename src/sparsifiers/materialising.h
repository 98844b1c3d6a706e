// Selections that depend on all elements: the largest elements, and the blocks with the largest sums.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include "core/check.h"
#include "sparsifiers/amounts.h"
#include "sparsifiers/chunk_reader.h"
#include "sparsifiers/sink.h"

namespace sparseloom::sparsifiers {

/// An element that the high bits of its key do not decide.
template <class T>
struct Candidate {
  T x;
  std::int64_t index;
  /// Whether this one stays in preference to the other.
  bool operator<(const Candidate& other) const noexcept {
    const Key<T> key = key_of(x), other_key = key_of(other.x);
    return key != other_key ? key > other_key : index < other.index;
  }
};

template <class T>
using Candidates = std::pmr::vector<Candidate<T>>;

template <class T>
void keep_best(Candidates<T>& candidates, std::int64_t count) {
  if (static_cast<std::int64_t>(candidates.size()) <= count) return;
  std::nth_element(candidates.begin(), candidates.begin() + count, candidates.end());
  candidates.erase(candidates.begin() + count, candidates.end());
}

/// The first pass counts the high bits of all keys, which determines the bin of the last ones that stay. The
/// second one takes the elements above, and the best `wanted` of the bin, never holding more than twice as
/// many.
template <class T>
void scalar_fraction(const Run<T>& run) {
  constexpr int kBinBits = std::min(kKeyBits<T>, 16), kShift = kKeyBits<T> - kBinBits;
  constexpr std::size_t kBins = std::size_t{1} << kBinBits;
  const std::int64_t n = run.elements(), parts = run.parts(n, 1);
  std::int64_t wanted = staying(run.spec.amount, n);

  std::pmr::vector<std::uint32_t> counts(static_cast<std::size_t>(parts) * kBins, run.scratch);
  run.for_parts(parts, n, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    std::uint32_t* const part_counts = counts.data() + static_cast<std::size_t>(part) * kBins;
    ChunkReader<T> reader(run.dense);
    reader.read(begin, end, [&](std::int64_t, T x) { ++part_counts[key_of(x) >> kShift]; });
  });
  std::size_t bin = kBins;  // the lowest bin with an element that stays; kBins: none stays
  for (std::int64_t left = wanted; left > 0;) {
    wanted = left, --bin;
    for (std::int64_t part = 0; part < parts; ++part)
      left -= counts[static_cast<std::size_t>(part) * kBins + bin];
  }

  const std::int64_t most = std::max<std::int64_t>(2 * wanted, 64);
  std::pmr::vector<Candidates<T>> candidates(run.scratch);
  for (std::int64_t part = 0; part < parts; ++part) {
    std::int64_t here = bin < kBins ? counts[static_cast<std::size_t>(part) * kBins + bin] : 0;
    // Memory is allocated here, because bodies of parallel loops must not throw.
    candidates.emplace_back().reserve(static_cast<std::size_t>(std::min(here, most)));
  }
  run.for_parts(parts, n, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    Candidates<T>& part_candidates = candidates[static_cast<std::size_t>(part)];
    ChunkReader<T> reader(run.dense);
    reader.read(begin, end, [&](std::int64_t i, T x) {
      const std::size_t key_bin = static_cast<std::size_t>(key_of(x) >> kShift);
      run.sink.put(i, x, key_bin > bin);
      if (key_bin != bin) return;
      if (static_cast<std::int64_t>(part_candidates.size()) == most) keep_best(part_candidates, wanted);
      part_candidates.push_back({x, i});
    });
    keep_best(part_candidates, wanted);
  });
  std::size_t together = 0;
  for (const Candidates<T>& of_part : candidates) together += of_part.size();
  Candidates<T> all(run.scratch);
  all.reserve(together);
  for (Candidates<T>& of_part : candidates) all.insert(all.end(), of_part.begin(), of_part.end());
  keep_best(all, wanted);
  for (const Candidate<T>& each : all) run.sink.put(each.index, each.x, true);
}

/// The first pass sums magnitudes, like block_scores; the second one takes the blocks that stay.
template <class T>
void blockwise_fraction(const Run<T>& run) {
  const std::int64_t rows = run.dense.rows, cols = run.dense.cols;
  const std::int64_t bm = std::min(run.spec.block_rows, rows), bn = std::min(run.spec.block_cols, cols);
  const std::int64_t grid_rows = core::ceil_div(rows, bm), grid_cols = core::ceil_div(cols, bn);
  const std::int64_t parts = run.parts(grid_rows, bm * cols);
  std::pmr::vector<double> sums(static_cast<std::size_t>(grid_rows * grid_cols), run.scratch);
  run.for_parts(parts, grid_rows, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    ChunkReader<T> reader(run.dense);
    for (std::int64_t row = begin * bm; row < std::min(end * bm, rows); ++row)
      for (std::int64_t block = 0; block < grid_cols; ++block) {
        double& sum = sums[static_cast<std::size_t>(row / bm * grid_cols + block)];
        reader.read(row * cols + block * bn, row * cols + std::min((block + 1) * bn, cols),
                    [&](std::int64_t, T x) { sum += std::fabs(to_f64(x)); });
      }
  });
  // Compared as fp32, like the scores of block patterns.
  Candidates<float> blocks(run.scratch);
  blocks.reserve(sums.size());
  for (std::size_t i = 0; i < sums.size(); ++i)
    blocks.push_back({static_cast<float>(sums[i]), static_cast<std::int64_t>(i)});
  keep_best(blocks, staying(run.spec.amount, static_cast<std::int64_t>(sums.size())));
  std::pmr::vector<std::uint8_t> stays(sums.size(), 0, run.scratch);
  for (const Candidate<float>& each : blocks) stays[static_cast<std::size_t>(each.index)] = 1;
  run.for_parts(parts, grid_rows, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    ChunkReader<T> reader(run.dense);
    for (std::int64_t row = begin * bm; row < std::min(end * bm, rows); ++row)
      for (std::int64_t block = 0; block < grid_cols; ++block) {
        const bool stay = stays[static_cast<std::size_t>(row / bm * grid_cols + block)] != 0;
        reader.read(row * cols + block * bn, row * cols + std::min((block + 1) * bn, cols),
                    [&](std::int64_t i, T x) { run.sink.put(i, x, stay); });
      }
  });
}

}  // namespace sparseloom::sparsifiers
