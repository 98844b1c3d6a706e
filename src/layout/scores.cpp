// block_scores: one norm per block, by which top_k selects.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/check.h"
#include "pattern/grid.h"
#include "sparseloom/generic/half.h"
#include "sparseloom/layout.h"

namespace sparseloom {
namespace {

double as_double(float x) { return x; }
double as_double(double x) { return x; }
double as_double(core::F16 x) { return core::to_f32(x); }
double as_double(core::Bf16 x) { return core::to_f32(x); }

void accumulate(BlockNorm norm, double magnitude, double& sum) {
  switch (norm) {
    case BlockNorm::l1: sum += magnitude; break;
    case BlockNorm::l2: sum += magnitude * magnitude; break;
    case BlockNorm::max:
      // Not std::max, which drops a NaN on one side: top_k must see the NaN in order to refuse it.
      if (!(magnitude <= sum)) sum = std::isnan(sum) ? sum : magnitude;
      break;
  }
}

template <class T>
void score(const ConstMatrixView& dense, BlockShape block, BlockNorm norm, pattern::Grid grid,
           std::span<float> scores) {
  std::vector<double> sums(static_cast<std::size_t>(grid.cols));
  for (std::int64_t r = 0; r < grid.rows; ++r) {
    std::fill(sums.begin(), sums.end(), 0.0);
    const std::int64_t bottom = std::min(dense.rows, (r + 1) * block.rows);
    for (std::int64_t y = r * block.rows; y < bottom; ++y) {
      const T* row = static_cast<const T*>(dense.data) + y * dense.stride;
      for (std::int64_t c = 0; c < grid.cols; ++c) {
        const std::int64_t right = std::min(dense.cols, (c + 1) * block.cols);
        for (std::int64_t x = c * block.cols; x < right; ++x)
          accumulate(norm, std::fabs(as_double(row[x])), sums[c]);
      }
    }
    for (std::int64_t c = 0; c < grid.cols; ++c) {
      scores[r * grid.cols + c] = static_cast<float>(norm == BlockNorm::l2 ? std::sqrt(sums[c]) : sums[c]);
    }
  }
}

}  // namespace

void block_scores(const ConstMatrixView& dense, BlockShape block, BlockNorm norm, std::span<float> scores) {
  const char* op = "block_scores";
  const pattern::Grid grid = pattern::require_grid(op, dense.rows, dense.cols, block);
  if (static_cast<std::int64_t>(scores.size()) != grid.cells()) {
    core::fail(op,
               std::to_string(grid.cells()) + " scores, one per block of the grid " +
                   core::shape(grid.rows, grid.cols),
               std::to_string(scores.size()), "size the output as block_rows * block_cols");
  }
  core::require_known(op, "norm", norm, BlockNorm::max);
  if (grid.cells() == 0) return;
  if (dense.stride < dense.cols) {
    core::fail(op, "a row stride of at least " + std::to_string(dense.cols) + " elements",
               std::to_string(dense.stride),
               "strides count elements, not bytes; a transposed matrix must be copied first");
  }
  core::require_memory(op, {{"dense", dense.data}, {"scores", scores.data()}});
  switch (dense.dtype) {
    case DType::f32: return score<float>(dense, block, norm, grid, scores);
    case DType::f16: return score<core::F16>(dense, block, norm, grid, scores);
    case DType::bf16: return score<core::Bf16>(dense, block, norm, grid, scores);
    case DType::f64: return score<double>(dense, block, norm, grid, scores);
    case DType::i8:
    case DType::f8e4m3:
      core::fail(op, "dense of dtype f32, f16, bf16 or f64", name_of(dense.dtype),
                 "score the weight before it is quantized");
  }
}

}  // namespace sparseloom
