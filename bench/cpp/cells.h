// The cells of the kernel benchmark: which problems are timed, and their operands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/args.h"
#include "sparseloom/layout.h"

namespace sparseloom::bench {

struct Cell {
  Direction direction;
  DType dtype;
  std::int64_t m, rows, cols;
  BlockShape block;
  double density;
  std::string name() const;
};

/// The shape and a small one: every direction, dtype, blocks 8 to 128, densities .05 to 1.
std::vector<Cell> target_cells();
/// A wider spread, 1 to 4096 tokens and 256 to 4096 features, drawn at random once: what the cost model is
/// fitted and judged on.
std::vector<Cell> model_cells(std::size_t count);

/// Random operands of one cell. Balanced rows; values in [-1, 1): zeros would run faster.
class Operands {
 public:
  explicit Operands(const Cell& cell);
  Problem problem(int threads) const;
  /// With a workspace of at least so many bytes.
  MatmulArgs args(std::size_t workspace_bytes);
  double flops() const;

 private:
  Cell cell_;
  BlockIndex index_;
  std::vector<std::byte> x_, dy_, values_, out_;
  std::unique_ptr<std::byte, void (*)(void*)> workspace_;
};

}  // namespace sparseloom::bench
