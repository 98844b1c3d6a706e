// Operands of products with tiles, on numbers whose sums are exact, and the answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/rng.h"
#include "kernels/matrix.h"
#include "sparseloom/tiles.h"

namespace sparseloom::testing {

struct TilesCase {
  std::int64_t m, cols, rows, side;
  double dense, half;  // shares of the tiles
  bool epilogue = false;
  Direction direction = Direction::forward;

  bool forward() const { return direction == Direction::forward; }
  std::int64_t depth() const { return forward() ? cols : rows; }
  std::int64_t outputs() const { return forward() ? rows : cols; }
};

/// W, the dense operand and the epilogue's, of small integers; `x` is dY for dX.
struct TilesOperands {
  TilesOperands(DType type, const TilesCase& each) : c(each), dtype(type) {
    core::Rng rng(static_cast<std::uint64_t>(c.m * 5 + c.cols * 3 + c.rows));
    const std::int64_t tiles = (c.rows + c.side - 1) / c.side * ((c.cols + c.side - 1) / c.side);
    w.rows = c.rows, w.cols = c.cols, w.side = c.side;
    for (std::int64_t i = 0; i < tiles; ++i) {
      const double drawn = static_cast<double>(rng.below(1000)) / 1000;
      kinds.push_back(drawn < c.dense ? 2 : drawn < c.dense + c.half ? 1 : 0);
      w.dense += kinds.back() == 2, w.halves += kinds.back() == 1;
    }
    table.resize(static_cast<std::size_t>(w.groups() * w.units() * TilesView::kGroup));
    Tiles::fill_table("test", w, kinds.data(), table.data());
    static constexpr unsigned kPairs[] = {0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110};
    for (std::int64_t i = 0; i < w.halves * c.side * (c.side / 8); ++i)
      positions.push_back(static_cast<std::uint8_t>(kPairs[rng.below(6)] | kPairs[rng.below(6)] << 4));
    positions.shrink_to_fit();
    w.table = table.data(), w.positions = positions.data();
    Tiles::validate("test", w);
    const auto fill = [&](std::vector<std::byte>& data, std::int64_t count) {
      data.resize(static_cast<std::size_t>(count) * size_of(dtype));
      for (std::int64_t i = 0; i < count; ++i)
        store(dtype, data.data(), i, static_cast<double>(rng.below(5)) - 2);
    };
    fill(values, Tiles::stored(w)), fill(x, c.m * c.depth()), fill(bias, c.rows);
    fill(residual, c.m * c.rows);
    zero_behind_the_edge();
  }

  /// The outputs of the tokens 0, step, ..: [tokens, outputs].
  std::vector<double> answers(std::int64_t step) const {
    std::vector<double> sums(static_cast<std::size_t>((c.m + step - 1) / step * c.outputs()));
    for (std::int64_t row = 0; row < c.rows; ++row)
      Tiles::for_each_in_row(w, row, [&](std::int64_t col, std::int64_t slot) {
        const std::int64_t output = c.forward() ? row : col, depth = c.forward() ? col : row;
        const double weight = load(dtype, values.data(), slot);
        for (std::int64_t token = 0, i = output; token < c.m; token += step, i += c.outputs())
          sums[static_cast<std::size_t>(i)] += weight * load(dtype, x.data(), token * c.depth() + depth);
      });
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(sums.size()); ++i) {
      const std::int64_t token = i / c.outputs() * step, output = i % c.outputs();
      double& sum = sums[static_cast<std::size_t>(i)];
      if (c.epilogue) {
        sum += load(dtype, bias.data(), output);
        sum = (sum < 0 ? 0 : sum) + load(dtype, residual.data(), token * c.rows + output);
      }
      std::byte rounded[4];
      store(dtype, rounded, 0, sum);
      sum = load(dtype, rounded, 0);
    }
    return sums;
  }

  TilesCase c;
  DType dtype;
  TilesView w;
  std::vector<std::uint8_t> kinds, positions;
  std::vector<std::int32_t> table;
  std::vector<std::byte> values, x, bias, residual;

 private:
  /// As layouts.Tiles packs them.
  void zero_behind_the_edge() {
    std::vector<bool> inside(static_cast<std::size_t>(Tiles::stored(w)));
    for (std::int64_t row = 0; row < c.rows; ++row)
      Tiles::for_each_in_row(
          w, row, [&](std::int64_t, std::int64_t slot) { inside[static_cast<std::size_t>(slot)] = true; });
    for (std::int64_t slot = 0; slot < Tiles::stored(w); ++slot)
      if (!inside[static_cast<std::size_t>(slot)]) store(dtype, values.data(), slot, 0);
  }
};

}  // namespace sparseloom::testing
