#include "kernels/cpu/cost.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/cpu/cell.h"

namespace sparseloom::kernels::cpu {
namespace {

using core::ceil_div;

constexpr double kCallUs = 1.5, kForkUs = 5;

}  // namespace

double predict_panel_us(const Problem& p, double peak, double copy_bytes, int lanes, int depth_step) {
  const double threads = std::max(1, p.threads);
  const double vectors = static_cast<double>(ceil_div(p.m, lanes));
  const double flops = 2.0 * vectors * lanes * static_cast<double>(p.blocks) * p.block.rows * p.block.cols;
  const double efficiency = vectors >= 2 ? 0.85 : 0.6;
  const double bytes =
      static_cast<double>(p.m) * static_cast<double>(p.rows + p.cols) * (4.0 / depth_step + static_cast<double>(size_of(p.dtype)));
  return kCallUs + (threads > 1 ? 2 * kForkUs : 0) + 1e6 / threads * (flops / (peak * efficiency) + bytes / copy_bytes);
}

double predict_decode_us(const Problem& p, double peak, double copy_bytes, int lanes) {
  const double threads = std::max(1, p.threads);
  const double elements = static_cast<double>(p.blocks) * p.block.rows * p.block.cols;
  const double tokens = p.m <= 1 ? 1 : p.m <= 2 ? 2 : p.m <= 4 ? 4 : 8;
  const double compute = 2 * elements * tokens / (peak * 0.5);
  const double bytes = elements * static_cast<double>(size_of(p.dtype)) / copy_bytes;
  static_cast<void>(lanes);
  return kCallUs + (threads > 1 ? kForkUs : 0) + 1e6 / threads * std::max(compute, bytes);
}

}  // namespace sparseloom::kernels::cpu
