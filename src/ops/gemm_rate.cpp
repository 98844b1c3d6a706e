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

// Measures at `whole` or, if that would take too long, at the largest smaller shape that does not.
MeasuredRate measure(DType dtype, bool forward, const Shape& whole, const Executor& executor) {
  std::vector<std::byte> a = varied(dtype, whole.m * whole.k), b = varied(dtype, whole.n * whole.k),
                         c(static_cast<std::size_t>(whole.m * whole.n) * size_of(dtype));
  std::vector<TimedProduct> products;
  for (Shape shape = whole;; shape = shape.halved()) {
    const auto [m, n, k] = shape;
    Gemm product;
    product.a = {a.data(), dtype, m, k, k};
    product.b =
        forward ? ConstMatrixView{b.data(), dtype, n, k, k} : ConstMatrixView{b.data(), dtype, k, n, n};
    product.b_transposed = forward;
    product.c = {c.data(), dtype, m, n, n};
    products.push_back({shape.flops(), [product, &executor] { executor.gemm(executor.context, product); }});
    if (shape.flops() <= kFirstWork) break;
  }
  return measure_within_budget(products);
}

}  // namespace

double gemm_rate(const Problem& p, const Executor& executor) {
  if (executor.gemm == nullptr || p.m <= 0 || p.rows <= 0 || p.cols <= 0) return 0;
  const bool forward = p.direction == Direction::forward;
  const Shape shape{sample(p.m, 512), sample(forward ? p.rows : p.cols, 2048),
                    sample(forward ? p.cols : p.rows, 2048)};
  const RateKey key{reinterpret_cast<std::int64_t>(executor.gemm),
                    static_cast<std::int64_t>(p.dtype),
                    forward,
                    p.threads,
                    shape.m,
                    shape.n,
                    shape.k};
  return kept_rate(key, [&] { return measure(p.dtype, forward, shape, executor); });
}

}  // namespace sparseloom::ops
