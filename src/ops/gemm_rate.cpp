// Measures the rate of the dense product that an executor lends.
#include "ops/gemm_rate.h"

#include <algorithm>
#include <vector>

#include "ops/measured_rate.h"

namespace sparseloom::ops {
namespace {

// Rounds a size down to a power of two: a rate differs little within a factor of two, and few shapes are
// measured in all.
std::int64_t sample(std::int64_t size, std::int64_t most) {
  std::int64_t rounded = 1;
  while (rounded * 2 <= std::min(size, most)) rounded *= 2;
  return rounded;
}

struct Shape {
  std::int64_t m, n, k;
  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
  Shape halved() const { return {(m + 1) / 2, (n + 1) / 2, (k + 1) / 2}; }
};

// The product of a direction: rows of dW are a sum over the tokens, whose GEMM is slower than dX's of as many
// flops (bf16, two threads of a Zen 4: by 10 to 15 %).
Gemm gemm_of(Direction direction, DType dtype, const Shape& shape, void* a, void* b, void* c) {
  const auto [m, n, k] = shape;
  Gemm product;
  product.a_transposed = direction == Direction::dw;
  product.b_transposed = direction == Direction::forward;
  product.a = product.a_transposed ? ConstMatrixView{a, dtype, k, m, m} : ConstMatrixView{a, dtype, m, k, k};
  product.b = product.b_transposed ? ConstMatrixView{b, dtype, n, k, k} : ConstMatrixView{b, dtype, k, n, n};
  product.c = {c, dtype, m, n, n};
  return product;
}

// Measures at `whole` or, if that would take too long, at the largest smaller shape that does not.
MeasuredRate measure(DType dtype, Direction direction, const Shape& whole, const Executor& executor) {
  std::vector<std::byte> a = varied(dtype, whole.m * whole.k), b = varied(dtype, whole.n * whole.k),
                         c(static_cast<std::size_t>(whole.m * whole.n) * size_of(dtype));
  std::vector<TimedProduct> products;
  for (Shape shape = whole;; shape = shape.halved()) {
    const Gemm product = gemm_of(direction, dtype, shape, a.data(), b.data(), c.data());
    products.push_back({shape.flops(), [product, &executor] { executor.gemm(executor.context, product); }});
    if (shape.flops() <= kFirstWork) break;
  }
  return measure_within_budget(products);
}

}  // namespace

double gemm_rate(const Problem& p, const Executor& executor) {
  if (executor.gemm == nullptr || p.m <= 0 || p.rows <= 0 || p.cols <= 0) return 0;
  const std::int64_t tokens = sample(p.m, 512), rows = sample(p.rows, 2048), cols = sample(p.cols, 2048);
  const Shape shape = p.direction == Direction::forward ? Shape{tokens, rows, cols}
                      : p.direction == Direction::dx    ? Shape{tokens, cols, rows}
                                                        : Shape{rows, cols, tokens};
  const RateKey key{reinterpret_cast<std::int64_t>(executor.gemm),
                    static_cast<std::int64_t>(p.dtype),
                    static_cast<std::int64_t>(p.direction),
                    p.threads,
                    shape.m,
                    shape.n,
                    shape.k};
  return kept_rate(key, [&] { return measure(p.dtype, p.direction, shape, executor); });
}

}  // namespace sparseloom::ops
