// Stored blocks with gates, and what gate_blocks and gate_gradients make of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/rng.h"
#include "sparseloom/gates.h"
#include "sparseloom/generic/scalar.h"
#include "sparseloom/packed_index.h"

namespace sparseloom::testing {

struct GatesShape {
  std::int64_t rows, cols;
  BlockShape block;
  double density;
  std::uint64_t closed;  // of ten gates, so many are zero
};

struct GatesCase {
  BlockIndex index;
  DType dtype;
  std::vector<std::int32_t> packed;
  std::vector<std::byte> values, gradient;  // the latter by the blocks that are left, as many as values
  std::vector<float> gates;

  GatesCase(DType given, const GatesShape& s)
      : index(random(s.rows, s.cols, s.block, s.density, 5)), dtype(given) {
    const IndexView view = index.view();
    packed.resize(segments().size);
    pack_index(view, packed.data());
    core::Rng rng(static_cast<std::uint64_t>(s.rows + s.cols));
    const std::int64_t elements = view.blocks * view.block_elements();
    values.resize(static_cast<std::size_t>(elements) * size_of(dtype));
    gradient = values;
    for (std::int64_t i = 0; i < elements; ++i) {
      kernels::store(dtype, values.data(), i, (static_cast<double>(rng.below(256)) - 128) / 64);
      kernels::store(dtype, gradient.data(), i, (static_cast<double>(rng.below(256)) - 128) / 32);
    }
    gates.reserve(static_cast<std::size_t>(view.blocks));
    for (std::int64_t i = 0; i < view.blocks; ++i)
      gates.push_back(rng.below(10) < s.closed ? 0.0f : static_cast<float>(rng.below(64)) / 64 + 0.25f);
  }

  IndexSegments segments() const {
    const IndexView view = index.view();
    return index_segments(view.block_rows(), view.block_cols(), view.blocks);
  }
  std::int64_t blocks() const { return index.view().blocks; }
  std::int64_t size() const { return index.view().block_elements(); }

  /// The index that gate_blocks writes, by the public functions alone, with zeros in the free slots.
  std::vector<std::int32_t> left() const {
    const IndexView view = index.view();
    BlockPattern pattern(view.rows, view.cols, view.block);
    for (std::int64_t r = 0; r < view.block_rows(); ++r)
      for (std::int32_t i = view.crow[r]; i < view.crow[r + 1]; ++i)
        if (gates[i] != 0) pattern.set(r, view.col[i], true);
    const BlockIndex kept(pattern);
    const IndexSegments at = segments();
    std::vector<std::int32_t> lists(static_cast<std::size_t>(at.size));
    const IndexView k = kept.view();
    const TransposedView t = kept.transposed();
    std::copy_n(k.crow, view.block_rows() + 1, lists.begin() + at.crow);
    std::copy_n(k.col, k.blocks, lists.begin() + at.col);
    std::copy_n(t.ccol, view.block_cols() + 1, lists.begin() + at.ccol);
    std::copy_n(t.row, k.blocks, lists.begin() + at.row);
    std::copy_n(t.slot, k.blocks, lists.begin() + at.slot);
    return lists;
  }

 private:
  static BlockIndex random(std::int64_t rows, std::int64_t cols, BlockShape block, double density,
                           std::uint64_t seed) {
    core::Rng rng(seed);
    BlockPattern pattern(rows, cols, block);
    for (std::int64_t r = 0; r < pattern.block_rows(); ++r)
      for (std::int64_t c = 0; c < pattern.block_cols(); ++c)
        pattern.set(r, c, static_cast<double>(rng.below(1000)) < density * 1000);
    return BlockIndex(pattern);
  }
};

}  // namespace sparseloom::testing
