// Patterns as bool masks [block rows, block cols].
#include "sparseloom/pattern.h"

#include <cstdio>
#include <span>

#include "convert.h"
#include "core/check.h"

namespace sparseloom::binding {
namespace {

BlockPattern from_mask(const char* op, const Tensor& given, std::int64_t rows, std::int64_t cols, std::int64_t bm,
                       std::int64_t bn) {
  const BlockShape block = block_of(op, rows, cols, bm, bn);
  require_cpu(op, "mask", given);
  const std::int64_t r = core::ceil_div(rows, bm), c = core::ceil_div(cols, bn);
  if (given.scalar_type() != ScalarType::Bool || given.dim() != 2 || given.size(0) != r || given.size(1) != c)
    core::fail(op,
               "a bool mask of shape " + core::shape(r, c) + ", one entry for each " + to_string(block) + " block of " +
                   core::shape(rows, cols),
               shape_of(given), "pass mask.bool() with one entry a block");
  const Tensor mask = torch::stable::contiguous(given);
  return pattern::from_mask(rows, cols, block,
                            std::span(static_cast<const std::uint8_t*>(mask.const_data_ptr()), static_cast<std::size_t>(r * c)));
}

template <BlockPattern (*generate)(std::int64_t, std::int64_t, BlockShape, double, std::uint64_t)>
Tensor by_density(std::int64_t rows, std::int64_t cols, std::int64_t bm, std::int64_t bn, double density, std::int64_t seed) {
  return mask_of(generate(rows, cols, block_of("pattern", rows, cols, bm, bn), density, static_cast<std::uint64_t>(seed)));
}

template <BlockPattern (*generate)(std::int64_t, std::int64_t, BlockShape, std::int64_t)>
Tensor by_count(std::int64_t rows, std::int64_t cols, std::int64_t bm, std::int64_t bn, std::int64_t count) {
  return mask_of(generate(rows, cols, block_of("pattern", rows, cols, bm, bn), count));
}

Tensor top_k(const Tensor& given, std::int64_t rows, std::int64_t cols, std::int64_t bm, std::int64_t bn, std::int64_t count) {
  const BlockShape block = block_of("pattern_top_k", rows, cols, bm, bn);
  require_cpu("pattern_top_k", "scores", given);
  if (given.scalar_type() != ScalarType::Float)
    core::fail("pattern_top_k", "float32 scores", "another dtype", "pass scores.float()");
  const Tensor scores = torch::stable::contiguous(given);
  return mask_of(pattern::top_k(
      rows, cols, block, std::span(static_cast<const float*>(scores.const_data_ptr()), static_cast<std::size_t>(scores.numel())),
      count));
}

std::string stats(const Tensor& mask, std::int64_t rows, std::int64_t cols, std::int64_t bm, std::int64_t bn) {
  const PatternStats s = from_mask("pattern_stats", mask, rows, cols, bm, bn).stats();
  char text[320];
  std::snprintf(text, sizeof text,
                "{\"blocks\": %lld, \"elements\": %lld, \"block_density\": %.17g, \"element_density\": %.17g, \"row_min\": %lld, "
                "\"row_max\": %lld, \"row_mean\": %.17g}",
                static_cast<long long>(s.blocks), static_cast<long long>(s.elements), s.block_density, s.element_density,
                static_cast<long long>(s.row_min), static_cast<long long>(s.row_max), s.row_mean);
  return text;
}

std::string ascii(const Tensor& mask, std::int64_t rows, std::int64_t cols, std::int64_t bm, std::int64_t bn,
                  std::int64_t max_side) {
  return from_mask("pattern_ascii", mask, rows, cols, bm, bn).ascii(static_cast<int>(max_side));
}

std::string svg(const Tensor& mask, std::int64_t rows, std::int64_t cols, std::int64_t bm, std::int64_t bn, std::int64_t pixels) {
  return from_mask("pattern_svg", mask, rows, cols, bm, bn).svg(static_cast<int>(pixels));
}

// [crow, col] of a mask.
std::tuple<Tensor, Tensor> mask_to_index(const Tensor& mask, std::int64_t rows, std::int64_t cols, std::int64_t bm,
                                         std::int64_t bn) {
  const BlockPattern pattern = from_mask("mask_to_index", mask, rows, cols, bm, bn);
  Tensor crow = new_cpu({pattern.block_rows() + 1}, ScalarType::Int), col = new_cpu({pattern.count()}, ScalarType::Int);
  auto* starts = static_cast<std::int32_t*>(crow.mutable_data_ptr());
  auto* columns = static_cast<std::int32_t*>(col.mutable_data_ptr());
  std::int32_t blocks = 0;
  for (std::int64_t r = 0; r < pattern.block_rows(); ++r) {
    starts[r] = blocks;
    for (std::int64_t c = 0; c < pattern.block_cols(); ++c)
      if (pattern.test(r, c)) columns[blocks++] = static_cast<std::int32_t>(c);
  }
  starts[pattern.block_rows()] = blocks;
  return {crow, col};
}

}  // namespace
}  // namespace sparseloom::binding

STABLE_TORCH_LIBRARY_IMPL(sparseloom, CompositeExplicitAutograd, m) {
  using namespace sparseloom;
  using namespace sparseloom::binding;
  m.impl("pattern_random", TORCH_BOX(&by_density<pattern::random>));
  m.impl("pattern_balanced", TORCH_BOX(&by_density<pattern::balanced>));
  m.impl("pattern_biregular", TORCH_BOX(&by_density<pattern::biregular>));
  m.impl("pattern_banded", TORCH_BOX(&by_count<pattern::banded>));
  m.impl("pattern_block_diagonal", TORCH_BOX(&by_count<pattern::block_diagonal>));
  m.impl("pattern_top_k", TORCH_BOX(&top_k));
  m.impl("pattern_stats", TORCH_BOX(&stats));
  m.impl("pattern_ascii", TORCH_BOX(&ascii));
  m.impl("pattern_svg", TORCH_BOX(&svg));
  m.impl("mask_to_index", TORCH_BOX(&mask_to_index));
}
