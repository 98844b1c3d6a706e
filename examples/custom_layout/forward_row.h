// A fast row for the forward product: blocks as short dot products in fp32, eight lanes at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "diagonal_plus_blocks.h"
#include "sparseloom/generic/parallel.h"
#include "sparseloom/linear_of.h"

namespace example {

using Linear = sparseloom::LinearOf<DiagonalPlusBlocks>;

constexpr std::int64_t kLanes = 8, kTokens = 16;  // tokens of one task, which reuse the blocks from the cache

/// The lanes have a fixed number and order, so that a compiler may use vectors without changing the bits.
inline float dot(const float* x, const float* w, std::int64_t count) {
  float sums[kLanes] = {};
  for (std::int64_t i = 0; i < count; i += kLanes)
    for (std::int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += x[i + lane] * w[i + lane];
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

inline sparseloom::Refusal propose(const Linear::Problem& p, const sparseloom::plan::Machine&,
                                   sparseloom::Proposals<Linear>& out) {
  if (p.direction != sparseloom::Direction::forward) return "multiplies forward only";
  if (p.dtype != sparseloom::DType::f32) return {"multiplies f32 only, the dtype is {}", name_of(p.dtype)};
  if (p.activation != sparseloom::Activation::none || p.residual) return "adds a bias and nothing else";
  // Compiled for any x86-64, the code above was measured at .05 to .09 of an AVX2 machine's peak.
  constexpr double kShare = 0.06;
  const double flops = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.stored);
  out.add({{}, 1 + 1e6 * flops / (kShare * p.rates.fma_flops * p.threads), 0});
  return {};
}

inline int launch(const Linear::Args& args, const Linear::Schedule&, const sparseloom::Executor& executor) {
  const auto& [product, w] = args;
  const auto *x = static_cast<const float*>(product.a), *values = static_cast<const float*>(product.values),
             *bias = static_cast<const float*>(product.bias),
             *blocks = values + DiagonalPlusBlocks::diagonal(w);
  auto* const y = static_cast<float*>(product.out);
  const std::int64_t parts = (product.m + kTokens - 1) / kTokens, diagonal = DiagonalPlusBlocks::diagonal(w);
  // Cut by outputs, never by sums: the bits are the same for any number of threads.
  sparseloom::runtime::parallel_tasks(
      executor, w.rows / w.side * parts, [&, &product = product, &w = w](std::int64_t task) {
        const std::int64_t r = task / parts, first = task % parts * kTokens;
        for (std::int64_t o = r * w.side; o < (r + 1) * w.side; ++o)
          for (std::int64_t t = first; t < std::min(first + kTokens, product.m); ++t) {
            const float* const row = x + t * product.a_stride;
            float sum = (bias ? bias[o] : 0) + (o < diagonal ? row[o] * values[o] : 0);
            for (std::int64_t b = w.crow[r]; b < w.crow[r + 1]; ++b)
              sum += dot(row + w.col[b] * w.side, blocks + (b * w.side + o % w.side) * w.side, w.side);
            y[t * product.out_stride + o] = sum;
          }
      });
  return 0;
}

}  // namespace example
