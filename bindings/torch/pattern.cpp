// The pattern operators, which pass patterns as bool masks [block rows, block cols], and mask_to_index.
#include "sparseloom/pattern.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <span>

#include "convert.h"
#include "core/check.h"
#include "core/json.h"
#include "pattern/cut.h"
#include "registration.h"
#include "sparseloom/pattern_graph.h"

namespace sparseloom::binding {
namespace {

// The mask as a contiguous tensor. Throws Error unless it is bool, of the grid's shape and on the CPU.
Tensor checked_mask(const char* op, const Tensor& given_mask, std::int64_t rows, std::int64_t cols,
                    BlockShape block) {
  const std::int64_t bm = block.rows, bn = block.cols;
  require_cpu(op, "mask", given_mask);
  const std::int64_t r = core::ceil_div(rows, bm), c = core::ceil_div(cols, bn);
  if (given_mask.scalar_type() != ScalarType::Bool || given_mask.dim() != 2 || given_mask.size(0) != r ||
      given_mask.size(1) != c)
    core::fail(op,
               "a bool mask of shape " + core::shape(r, c) + ", one entry for each " + to_string(block) +
                   " block of " + core::shape(rows, cols),
               shape_of(given_mask), "pass mask.bool() with one entry a block");
  return torch::stable::contiguous(given_mask);
}

BlockPattern from_mask(const char* op, const Tensor& given_mask, std::int64_t rows, std::int64_t cols,
                       std::int64_t bm, std::int64_t bn) {
  const BlockShape block = block_of(op, rows, cols, bm, bn);
  const Tensor mask = checked_mask(op, given_mask, rows, cols, block);
  const std::span cells(static_cast<const std::uint8_t*>(mask.const_data_ptr()),
                        static_cast<std::size_t>(mask.numel()));
  return pattern::from_mask(rows, cols, block, cells);
}

Tensor generate(Text generator, std::int64_t rows, std::int64_t cols, std::int64_t bm, std::int64_t bn,
                const std::vector<double>& arguments, std::int64_t seed) {
  const std::string name = taken(generator);
  return mask_of(pattern::generate(name, rows, cols, block_of("pattern", rows, cols, bm, bn), arguments,
                                   static_cast<std::uint64_t>(seed)));
}

constexpr char kTopK[] = "pattern_top_k", kTopKByRow[] = "pattern_top_k_by_row";

template <const char* op, BlockPattern (*choose)(std::int64_t, std::int64_t, BlockShape,
                                                 std::span<const float>, std::int64_t)>
Tensor by_scores(const Tensor& given_scores, std::int64_t rows, std::int64_t cols, std::int64_t bm,
                 std::int64_t bn, std::int64_t count) {
  const BlockShape block = block_of(op, rows, cols, bm, bn);
  require_cpu(op, "scores", given_scores);
  if (given_scores.scalar_type() != ScalarType::Float)
    core::fail(op, "float32 scores", "another dtype", "pass scores.float()");
  const Tensor scores = torch::stable::contiguous(given_scores);
  const auto* first = static_cast<const float*>(scores.const_data_ptr());
  return mask_of(
      choose(rows, cols, block, std::span(first, static_cast<std::size_t>(scores.numel())), count));
}

template <class Number>
Tensor tensor_of(const std::vector<Number>& numbers, ScalarType type) {
  Tensor result = new_cpu({static_cast<std::int64_t>(numbers.size())}, type);
  std::copy(numbers.begin(), numbers.end(), static_cast<Number*>(result.mutable_data_ptr()));
  return result;
}

Tensor cut_lines(const std::vector<std::int64_t>& stored, std::int64_t parts) {
  return tensor_of(pattern::cut_lines(stored, parts), ScalarType::Long);
}

Tensor extra_edges(const Tensor& mask, std::int64_t rows, std::int64_t cols, std::int64_t bm, std::int64_t bn,
                   std::int64_t edges, std::int64_t seed) {
  return mask_of(pattern::extra_edges(from_mask("pattern_extra_edges", mask, rows, cols, bm, bn), edges,
                                      static_cast<std::uint64_t>(seed)));
}

Tensor mixing(const std::vector<Tensor>& masks, const std::vector<std::int64_t>& sizes, std::int64_t steps) {
  const char* op = "pattern_mixing";
  if (sizes.size() != 4 * masks.size())
    core::fail(op, "four sizes for each mask", std::to_string(sizes.size()), "pass rows, cols and the block");
  std::vector<BlockPattern> patterns;
  for (std::size_t i = 0; i < masks.size(); ++i) {
    const std::int64_t* size = &sizes[4 * i];
    patterns.push_back(from_mask(op, masks[i], size[0], size[1], size[2], size[3]));
  }
  return tensor_of(pattern::mixing(patterns, steps), ScalarType::Double);
}

Tensor distances(const Tensor& mask, std::int64_t rows, std::int64_t cols, std::int64_t bm, std::int64_t bn,
                 std::int64_t start) {
  return tensor_of(pattern::distances(from_mask("pattern_distances", mask, rows, cols, bm, bn), start),
                   ScalarType::Long);
}

std::string small_world(const Tensor& mask, std::int64_t rows, std::int64_t cols, std::int64_t bm,
                        std::int64_t bn) {
  const pattern::SmallWorld result =
      pattern::small_world(from_mask("pattern_small_world", mask, rows, cols, bm, bn));
  std::string text = "{";
  const auto add = [&](const char* name, double value) {
    text += (text.size() > 1 ? ", \"" : "\"") + std::string(name) + "\": " + core::json_number(value);
  };
  add("degree_mean", result.degree_mean);
  add("path_length", result.path_length);
  add("diameter", result.diameter);
  add("clustering", result.clustering);
  add("figure", result.figure);
  const auto count = [&](const char* name, std::int64_t value) {
    text += ", \"" + std::string(name) + "\": " + std::to_string(value);
  };
  count("nodes", result.nodes);
  count("edges", result.edges);
  count("degree_min", result.degree_min);
  count("degree_max", result.degree_max);
  return text + "}";
}

std::string stats(const Tensor& mask, std::int64_t rows, std::int64_t cols, std::int64_t bm,
                  std::int64_t bn) {
  const PatternStats s = from_mask("pattern_stats", mask, rows, cols, bm, bn).stats();
  char text[320];
  std::snprintf(text, sizeof text,
                "{\"blocks\": %lld, \"elements\": %lld, \"block_density\": %.17g, \"element_density\": "
                "%.17g, \"row_min\": %lld, "
                "\"row_max\": %lld, \"row_mean\": %.17g}",
                static_cast<long long>(s.blocks), static_cast<long long>(s.elements), s.block_density,
                s.element_density, static_cast<long long>(s.row_min), static_cast<long long>(s.row_max),
                s.row_mean);
  return text;
}

std::string ascii(const Tensor& mask, std::int64_t rows, std::int64_t cols, std::int64_t bm, std::int64_t bn,
                  std::int64_t max_side) {
  return from_mask("pattern_ascii", mask, rows, cols, bm, bn).ascii(static_cast<int>(max_side));
}

std::string svg(const Tensor& mask, std::int64_t rows, std::int64_t cols, std::int64_t bm, std::int64_t bn,
                std::int64_t pixels) {
  return from_mask("pattern_svg", mask, rows, cols, bm, bn).svg(static_cast<int>(pixels));
}

// The row index [crow, col] of a mask.
std::tuple<Tensor, Tensor> mask_to_index(const Tensor& mask, std::int64_t rows, std::int64_t cols,
                                         std::int64_t bm, std::int64_t bn) {
  const Tensor checked =
      checked_mask("mask_to_index", mask, rows, cols, block_of("mask_to_index", rows, cols, bm, bn));
  const std::int64_t block_rows = checked.size(0), block_cols = checked.size(1);
  const auto* cell = static_cast<const std::uint8_t*>(checked.const_data_ptr());
  const std::int64_t blocks =
      std::count_if(cell, cell + checked.numel(), [](std::uint8_t present) { return present != 0; });
  if (blocks > std::numeric_limits<std::int32_t>::max())
    core::fail("mask_to_index", "at most 2^31 - 1 blocks", std::to_string(blocks), "use a larger block");
  Tensor crow = new_cpu({block_rows + 1}, ScalarType::Int), col = new_cpu({blocks}, ScalarType::Int);
  auto* starts = static_cast<std::int32_t*>(crow.mutable_data_ptr());
  auto* columns = static_cast<std::int32_t*>(col.mutable_data_ptr());
  // Every column is written, and counted only if present. That needs no branch, which half of the cells of a
  // random mask would mispredict.
  std::vector<std::int32_t> in_row(static_cast<std::size_t>(block_cols) + 1);
  starts[0] = 0;
  for (std::int64_t r = 0; r < block_rows; ++r) {
    std::size_t result = 0;
    for (std::int64_t c = 0; c < block_cols; ++c)
      in_row[result] = static_cast<std::int32_t>(c), result += *cell++ != 0;
    columns = std::copy_n(in_row.begin(), result, columns);
    starts[r + 1] = starts[r] + static_cast<std::int32_t>(result);
  }
  return {crow, col};
}

}  // namespace
}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  using namespace sparseloom;
  using namespace sparseloom::binding;
  m.impl("generate_pattern", TORCH_BOX(&generate));
  m.impl(kTopK, TORCH_BOX((&by_scores<kTopK, pattern::top_k>)));
  m.impl(kTopKByRow, TORCH_BOX((&by_scores<kTopKByRow, pattern::top_k_by_row>)));
  m.impl("cut_lines", TORCH_BOX(&cut_lines));
  m.impl("pattern_extra_edges", TORCH_BOX(&extra_edges));
  m.impl("pattern_mixing", TORCH_BOX(&mixing));
  m.impl("pattern_distances", TORCH_BOX(&distances));
  m.impl("pattern_small_world", TORCH_BOX(&small_world));
  m.impl("pattern_stats", TORCH_BOX(&stats));
  m.impl("pattern_ascii", TORCH_BOX(&ascii));
  m.impl("pattern_svg", TORCH_BOX(&svg));
  m.impl("mask_to_index", TORCH_BOX(&mask_to_index));
}
