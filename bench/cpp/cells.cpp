#include "cells.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/rng.h"
#include "sparseloom/generic/half.h"
#include "sparseloom/plan.h"

namespace sparseloom::bench {
namespace {

constexpr Direction kDirections[] = {Direction::forward, Direction::dx, Direction::dw};
constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

std::vector<std::byte> random_elements(DType dtype, std::int64_t count, std::uint64_t seed) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size_of(dtype));
  core::Rng rng(seed);
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(2 * rng.uniform() - 1);
    std::byte* at = bytes.data() + static_cast<std::size_t>(i) * size_of(dtype);
    if (dtype == DType::f32) {
      std::memcpy(at, &value, sizeof value);
    } else {
      const std::uint16_t bits = dtype == DType::f16 ? core::to_f16(value).bits : core::to_bf16(value).bits;
      std::memcpy(at, &bits, sizeof bits);
    }
  }
  return bytes;
}

}  // namespace

std::string Cell::name() const {
  char text[128];
  std::snprintf(text, sizeof text, "%s/%s/%ldx%ldx%ld/b%s/d%g", name_of(direction), name_of(dtype),
                static_cast<long>(m), static_cast<long>(cols), static_cast<long>(rows),
                to_string(block).c_str(), density);
  return text;
}

std::vector<Cell> target_cells() {
  std::vector<Cell> cells;
  const auto add = [&](std::int64_t m, std::int64_t rows, std::int64_t cols, std::int32_t block,
                       double density) {
    for (const DType dtype : kTypes)
      for (const Direction direction : kDirections)
        cells.push_back({direction, dtype, m, rows, cols, {block, block}, density});
  };
  for (const std::int32_t block : {32, 64})
    for (const double density : {0.05, 0.1, 0.2, 0.5, 0.8}) add(1024, 4096, 4096, block, density);
  for (const std::int32_t block : {8, 16, 128}) add(1024, 4096, 4096, block, 0.1);
  for (const std::int32_t block : {16, 32, 64}) add(256, 1024, 256, block, 0.25);
  for (const std::int64_t m : {1, 4, 16}) add(m, 4096, 4096, 32, 0.1);
  return cells;
}

std::vector<Cell> model_cells(std::size_t count) {
  core::Rng rng(7);
  const auto pick = [&](const auto& list) { return list[rng.below(std::size(list))]; };
  constexpr std::int64_t kTokens[] = {1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 100, 256, 512, 1024, 4096};
  constexpr std::int64_t kShapes[][2] = {{256, 1024}, {1024, 256}, {1024, 1024},
                                         {768, 3072}, {2048, 512}, {4096, 4096}};
  constexpr std::int32_t kBlocks[] = {8, 16, 32, 64, 128};
  constexpr double kDensities[] = {0.05, 0.1, 0.25, 0.5, 1.0};
  constexpr double kMostProducts = 4e9;  // some 40 ms a call
  std::vector<Cell> cells;
  while (cells.size() < count) {
    const auto& shape = pick(kShapes);
    const std::int32_t block = pick(kBlocks);
    const Cell cell = {pick(kDirections), pick(kTypes), pick(kTokens),
                       shape[0],          shape[1],     {block, rng.below(4) ? block : pick(kBlocks)},
                       pick(kDensities)};
    if (static_cast<double>(cell.m * cell.rows * cell.cols) * cell.density < kMostProducts)
      cells.push_back(cell);
  }
  return cells;
}

Operands::Operands(const Cell& cell)
    : cell_(cell),
      index_(pattern::balanced(cell.rows, cell.cols, cell.block, cell.density, 1)),
      x_(random_elements(cell.dtype, cell.m * cell.cols, 1)),
      dy_(random_elements(cell.dtype, cell.m * cell.rows, 2)),
      values_(random_elements(cell.dtype, index_.view().blocks * index_.view().block_elements(), 3)),
      workspace_(nullptr, std::free) {
  const std::int64_t outputs = cell.direction == Direction::forward ? cell.m * cell.rows
                               : cell.direction == Direction::dx
                                   ? cell.m * cell.cols
                                   : index_.view().blocks * index_.view().block_elements();
  out_.resize(static_cast<std::size_t>(outputs) * size_of(cell.dtype));
}

Problem Operands::problem(int threads) const {
  Problem p;
  p.direction = cell_.direction, p.dtype = cell_.dtype;
  p.m = cell_.m, p.rows = cell_.rows, p.cols = cell_.cols;
  p.block = cell_.block, p.blocks = index_.view().blocks;
  p.threads = threads;
  return p;
}

MatmulArgs Operands::args(std::size_t workspace_bytes) {
  const std::size_t bytes = (workspace_bytes + 127) / 64 * 64;
  workspace_.reset(static_cast<std::byte*>(std::aligned_alloc(64, bytes)));
  std::memset(workspace_.get(), 0, bytes);
  const bool forward = cell_.direction == Direction::forward;
  MatmulArgs args;
  args.direction = cell_.direction, args.dtype = cell_.dtype, args.m = cell_.m;
  args.a = forward ? x_.data() : dy_.data(), args.a_stride = forward ? cell_.cols : cell_.rows;
  args.b = x_.data(), args.b_stride = cell_.cols;
  args.index = index_.view(), args.transposed = index_.transposed();
  args.values = values_.data();
  args.out = out_.data(), args.out_stride = forward ? cell_.rows : cell_.cols;
  args.workspace = workspace_.get();
  return args;
}

double Operands::flops() const {
  return 2.0 * static_cast<double>(cell_.m) *
         static_cast<double>(index_.view().blocks * index_.view().block_elements());
}

}  // namespace sparseloom::bench
