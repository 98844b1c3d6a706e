// What the kernels of AVX2 share: all threads pack x (dX: dY) as fp32, then take units of outputs (dX: of
// columns), in one parallel region.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/check.h"
#include "kernels/args.h"
#include "kernels/runs.h"
#include "sparseloom/executor.h"
#include "sparseloom/semi24.h"

namespace sparseloom::kernels::cpu {

/// The arguments of a kernel.
struct PackedJob {
  const MatmulArgs& args;
  Semi24View w;
  float* packed;  // x or dY, in the order of the kernel, zero past the last feature and token
};

/// A kernel, for one dtype.
struct PackedOps {
  Runs* runs;  // the kernel's count of its runs
  Direction direction;
  std::int64_t step;  // features that are packed together
  std::int64_t unit;  // outputs of a unit of work; dX: groups
  /// How many numbers PackedJob::packed has.
  std::int64_t (*floats)(std::int64_t m, std::int64_t features);
  /// Writes PackedJob::packed for the features [begin, end): x's columns or dY's. Both are multiples of
  /// `step`; end may be past the last feature.
  void (*pack)(const PackedJob& job, std::int64_t begin, std::int64_t end);
  /// Computes the units [begin, end).
  void (*units)(const PackedJob& job, std::int64_t begin, std::int64_t end);
};

/// Returns the kernel of a dtype, or null.
inline const PackedOps* of_dtype(DType dtype, const PackedOps& f32, const PackedOps& f16,
                                 const PackedOps& bf16) noexcept {
  return dtype == DType::f32 ? &f32 : dtype == DType::f16 ? &f16 : dtype == DType::bf16 ? &bf16 : nullptr;
}

std::size_t packed_workspace(const PackedOps& ops, std::int64_t m, std::int64_t rows, std::int64_t cols);
void run_packed(const PackedOps& ops, const MatmulArgs& args, const Semi24View& w, const Executor& executor);

/// Tokens of a vector.
inline constexpr std::int64_t kTokenLanes = 8;
/// gather, columns: most vectors of tokens per panel. Their sums, one weight and what the compiler needs fill
/// the registers.
inline constexpr std::int64_t kPanelVectors = 12;

/// How gather and columns divide the tokens: panels of equally many vectors.
struct Panels {
  std::int64_t panels, vectors;
  explicit Panels(std::int64_t m) {
    const std::int64_t all = std::max<std::int64_t>(1, core::ceil_div(m, kTokenLanes));
    panels = core::ceil_div(all, kPanelVectors), vectors = core::ceil_div(all, panels);
  }
};

/// The features that an operand packed by panels has: zero past the last one.
inline std::int64_t panel_depth(std::int64_t features) { return core::round_up(features, kTokenLanes); }

/// PackedOps::floats of [panels][panel_depth][vectors * kTokenLanes tokens].
inline std::int64_t panel_floats(std::int64_t m, std::int64_t features) {
  const Panels of(m);
  return of.panels * of.vectors * kTokenLanes * panel_depth(features);
}

/// PackedOps::floats of [vectors][features][kTokenLanes tokens].
inline std::int64_t vector_floats(std::int64_t m, std::int64_t features) {
  return core::round_up(m, kTokenLanes) * features;
}

/// Most tokens of spread, whose sums of one unit take 16 kB.
inline constexpr std::int64_t kSpreadMostTokens = 64;

}  // namespace sparseloom::kernels::cpu
