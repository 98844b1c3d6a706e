// Measures the rate of the dense product that an executor lends.
#include "ops/gemm_rate.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "sparseloom/generic/half.h"

namespace sparseloom::ops {
namespace {

// Callback, dtype, direction, threads, m, n, k.
using Key = std::array<std::int64_t, 7>;

// Rounds a size down to a power of two: a rate differs little within a factor of two, and few shapes are
// measured in all.
std::int64_t sample(std::int64_t size, std::int64_t most) {
  std::int64_t rounded = 1;
  while (rounded * 2 <= std::min(size, most)) rounded *= 2;
  return rounded;
}

// Fills with small varied values: zeros and denormals have other speeds than ordinary data.
void fill(DType dtype, std::vector<std::byte>& data) {
  const std::size_t count = data.size() / size_of(dtype);
  for (std::size_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(static_cast<int>(i * 2654435761u >> 20 & 1023) - 512) / 512.0f;
    std::byte* at = data.data() + i * size_of(dtype);
    if (dtype == DType::f32) {
      std::memcpy(at, &value, 4);
    } else if (dtype == DType::f64) {
      const double wide = value;
      std::memcpy(at, &wide, 8);
    } else {
      const std::uint16_t bits = dtype == DType::bf16 ? core::to_bf16(value).bits : core::to_f16(value).bits;
      std::memcpy(at, &bits, 2);
    }
  }
}

struct Shape {
  std::int64_t m, n, k;
  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
  Shape halved() const { return {(m + 1) / 2, (n + 1) / 2, (k + 1) / 2}; }
};

// torch's own loop for fp16 and, without AVX-512, for bf16 multiplies dX at only 0.26 Gflop/s, so the whole
// shape could take many seconds. A product of kFirstFlops takes 2 ms there. Its shape is enlarged only while
// the next run is expected to take at most kRunSeconds: such a slow GEMM loses anyway.
constexpr double kFirstFlops = 1 << 19;
constexpr double kRunSeconds = 20e-3;
// No GEMM is slower than this. If a run is, or at half the rate of the previous smaller shape, another
// process had a core: a late thread costs 8 ms, as much as a product that is a thousand times larger. If that
// persists, larger shapes are tried nevertheless: 8 ms weigh less there.
constexpr double kLeastFlops = 0.25e9;
constexpr int kDisturbedRuns = 40;
constexpr double kDisturbedSeconds = 0.4, kDisturbedRunSeconds = 0.2;

// Measures the product of this shape, in flops per second. `least`: a lower rate means that others disturbed
// the run.
double measure(DType dtype, bool forward, const Shape& shape, double least, const Executor& executor) {
  const auto [m, n, k] = shape;
  const std::size_t size = size_of(dtype);
  std::vector<std::byte> a(m * k * size), b(n * k * size), c(m * n * size);
  fill(dtype, a);
  fill(dtype, b);
  Gemm product;
  product.a = {a.data(), dtype, m, k, k};
  product.b = forward ? ConstMatrixView{b.data(), dtype, n, k, k} : ConstMatrixView{b.data(), dtype, k, n, n};
  product.b_transposed = forward;
  product.c = {c.data(), dtype, m, n, n};
  using Clock = std::chrono::steady_clock;
  // The first run warms the vendor's caches; the very first one loads its library.
  executor.gemm(executor.context, product);
  double best = 1e30, total = 0;
  // Do one run, a second one if the budget allows, and more while they are cheap. Keep the minimum, which
  // other load on the machine disturbs least.
  const auto disturbed = [&] { return shape.flops() < least * best; };
  for (int run = 0; run < 1 || (run < 2 && total < kRunSeconds) || (run < 20 && total < 5e-3) ||
                    (run < kDisturbedRuns && total < kDisturbedSeconds && disturbed());
       ++run) {
    const auto start = Clock::now();
    executor.gemm(executor.context, product);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::min(best, seconds);
    total += seconds;
  }
  return shape.flops() / best;
}

// Measures at `whole` or, if that would take too long, at the largest smaller shape that does not.
double measure_within_budget(DType dtype, bool forward, const Shape& whole, const Executor& executor) {
  std::vector<Shape> shapes{whole};
  while (shapes.back().flops() > kFirstFlops) shapes.push_back(shapes.back().halved());
  double rate = 0, budget = kRunSeconds;
  for (auto shape = shapes.rbegin(); shape != shapes.rend() && (rate == 0 || shape->flops() / rate <= budget);
       ++shape) {
    const double least = std::max(kLeastFlops, rate / 2);
    const double measured = measure(dtype, forward, *shape, least, executor);
    if (measured < least) budget = kDisturbedRunSeconds;
    rate = std::max(measured, kLeastFlops);
  }
  return rate;
}

}  // namespace

double gemm_rate(const Problem& p, const Executor& executor) {
  if (executor.gemm == nullptr || p.m <= 0 || p.rows <= 0 || p.cols <= 0) return 0;
  const bool forward = p.direction == Direction::forward;
  const Shape shape{sample(p.m, 512), sample(forward ? p.rows : p.cols, 2048),
                    sample(forward ? p.cols : p.rows, 2048)};
  const Key key{reinterpret_cast<std::int64_t>(executor.gemm),
                static_cast<std::int64_t>(p.dtype),
                forward,
                p.threads,
                shape.m,
                shape.n,
                shape.k};
  static std::mutex mutex;
  static std::map<Key, double> rates;
  {
    std::lock_guard lock(mutex);
    if (auto entry = rates.find(key); entry != rates.end()) return entry->second;
  }
  // Measured outside the lock, because the callback may call back.
  const double rate = measure_within_budget(p.dtype, forward, shape, executor);
  std::lock_guard lock(mutex);
  return rates.emplace(key, rate).first->second;
}

}  // namespace sparseloom::ops
