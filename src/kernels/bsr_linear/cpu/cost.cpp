// Predicts a call's time from a kernel's fitted costs.
#include "kernels/bsr_linear/cpu/cost.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "kernels/bsr_linear/cpu/panel.h"
#include "kernels/shared/cost/cost_terms.h"
#include "kernels/shared/cpu/cell.h"
#include "runtime/huge_pages.h"

namespace sparseloom::kernels::cpu {
namespace {

using core::ceil_div;
using core::round_up;

constexpr double kAvx2FlopsPerCycle = 32;
constexpr double kL1Bytes = 32 << 10;
// Decode's forward takes this factor longer per token if the tokens exceed L1. Fitted: 8 tokens of 2048
// features took 1.45 (fp32) and 1.3 (bf16) of the model's time.
constexpr double kTokensBeyondL1 = 1.4;

// The most tokens of outer_few; fewer in blocks of half a vector, where it has only four sums side by side.
// With more tokens the larger tiles of `outer` and its prefetches are as fast or faster.
constexpr std::int64_t kFewOuterTokens = 256, kFewInHalves = 64;
// dw of few tokens: cycles per stored element written, for fp32 and for 16 bits.
constexpr double kFewElement = 0.3, kFewElement16 = 0.39;

/// The waits of a kernel, the same with every instruction set: fitted as the costs were. A panel kernel's
/// threads synchronise once more after packing.
struct Waits {
  double fork;  // microseconds for waking and joining the threads
  // Time per byte of stored values, input and output, relative to a copy inside the last-level cache, if all
  // of it comes from DRAM.
  double values, in, out;
  // A call that touches as many bytes finds half of them in the caches.
  double resident_bytes;
};
// Time per byte of a result that is mapped anew in each call: zeroing its huge page. Fitted to dw of 40 to
// 160 MB.
constexpr double kMappedAnew = 10;
constexpr Waits kForwardWaits{kPanelForkUs, 6.6, 9.7, 0.4, 4.3e6},
    kDxWaits{kPanelForkUs, 7.6, 6.5, 0.7, 4.7e6}, kDwWaits{5.3, 0, 0.83, 3.7, 4e6},
    kDecodeForwardWaits{5.7, 11, 1.9, 0, 9.5e6}, kDecodeDxWaits{5.2, 13, 2.4, 0, 10e6};

// Microseconds per cycle of the costs on this machine.
double cycle_us(const plan::MachineRates& rates) {
  return 1e6 * kAvx2FlopsPerCycle / (rates.f32_avx2 > 0 ? rates.f32_avx2 : 100e9);
}

double elements_of(const Problem& p) { return static_cast<double>(p.blocks) * p.block.rows * p.block.cols; }

double memory_us(const Problem& p, const plan::MachineRates& rates, const Waits& waits) {
  const auto size = static_cast<double>(size_of(p.dtype));
  const double m = static_cast<double>(p.m), rows = static_cast<double>(p.rows),
               cols = static_cast<double>(p.cols), values = elements_of(p) * size;
  const bool dw = p.direction == Direction::dw, forward = p.direction == Direction::forward;
  const double in = size * m *
                    (dw        ? rows + cols
                     : forward ? cols
                               : rows),
               out = dw ? values : size * m * (forward ? rows : cols);
  const double touched = in + out + (dw ? 0 : values);
  const double cold = touched / (touched + waits.resident_bytes);
  const double mapped = !p.accumulate && out >= runtime::kMappedAnewBytes ? out * kMappedAnew : 0;
  return 1e6 * (cold * (values * waits.values + in * waits.in + out * waits.out) + mapped) /
         (rates.copy_bytes > 0 ? rates.copy_bytes : 50e9);
}

// `us`: the time on one thread; `work`: the number of tasks it is worth.
double with_threads(double us, const Problem& p, double work, double fork) {
  const double tasks = std::clamp(work, 1.0, static_cast<double>(std::max(1, p.threads)));
  return kCallUs + us / tasks + (tasks > 1 ? fork : 0);
}

double predict_strips_us(const Problem& p, const plan::MachineRates& rates, double step_us,
                         const PanelCosts& costs) {
  const bool forward = p.direction == Direction::forward;
  const StripCosts& c = forward ? costs.forward : costs.dx;
  const double cycle = cycle_us(rates);
  const double outputs = static_cast<double>(forward ? p.rows : p.cols),
               depth = static_cast<double>(forward ? p.cols : p.rows);
  const double output_block = forward ? p.block.rows : p.block.cols;
  const std::int64_t vectors = ceil_div(p.m, costs.lanes), panels = ceil_div(vectors, kMaxVectors);
  const double elements = elements_of(p),
               steps = elements / kGroup / costs.depth_step;  // steps of all strips of one panel
  const double element = size_of(p.dtype) == 2 ? c.widened : c.element;
  // Panels are as even as possible: `wide` of them have one more vector than the others.
  const std::int64_t narrow_width = panels ? vectors / panels : 0, wide = panels ? vectors % panels : 0;
  const auto products_us = [&](std::int64_t width) { return width * c.vectors[width] * steps * step_us; };
  double us = static_cast<double>(panels - wide) * products_us(narrow_width);
  if (wide) us += static_cast<double>(wide) * products_us(narrow_width + 1);
  us += cycle * static_cast<double>(panels) *
        (static_cast<double>(p.blocks) * output_block / kGroup * c.block + outputs / kGroup * c.strip +
         elements * element);
  us += cycle * static_cast<double>(vectors * costs.lanes) * (outputs * c.out + depth * c.pack);
  if (!forward && costs.depth_step == 2) us += cycle * elements * c.transpose;
  const Waits& waits = forward ? kForwardWaits : kDxWaits;
  return with_threads(us + memory_us(p, rates, waits), p,
                      static_cast<double>(p.m) * (elements + outputs + depth) / kTaskProducts, waits.fork);
}

double predict_outer_us(const Problem& p, const plan::MachineRates& rates, double step_us,
                        const PanelCosts& costs) {
  const OuterCosts& c = costs.dw;
  const double cycle = cycle_us(rates);
  const double elements = elements_of(p), m = static_cast<double>(p.m);
  const double rows = static_cast<double>(round_up(p.rows, p.block.rows)),
               cols = static_cast<double>(round_up(p.cols, p.block.cols));
  const double steps = std::ceil(m / costs.depth_step);
  double us = cycle * m * (rows + cols) * c.pack + memory_us(p, rates, kDwWaits);
  if (few_outer_tokens(costs.lanes, p.block, p.m)) {
    const int vectors = p.block.cols < costs.lanes ? 0 : p.block.cols == costs.lanes ? 1 : 2;
    const double write = size_of(p.dtype) == 2 && !p.accumulate ? kFewElement16 : kFewElement;
    us += elements / kGroup / costs.lanes * steps * step_us * c.few[vectors] + cycle * elements * write;
  } else {
    const double block_rows = rows / p.block.rows;
    // A block row's stored columns are divided into full triples of vectors and a rest.
    const double row_vectors = block_rows > 0 ? elements / p.block.rows / block_rows / costs.lanes : 0;
    const double triples = std::floor(row_vectors / kMaxVectors);
    const int rest = static_cast<int>(std::ceil(row_vectors - triples * kMaxVectors - 1e-9));
    us += block_rows * p.block.rows / kGroup * steps * step_us *
          (triples * kMaxVectors * c.vectors[kMaxVectors] + rest * c.vectors[rest]);
    us += cycle * elements * c.element;
  }
  return with_threads(us, p, m * (elements + rows + cols) / kTaskProducts, kDwWaits.fork);
}

}  // namespace

bool few_outer_tokens(int lanes, BlockShape block, std::int64_t m) {
  return m <= (block.cols < lanes ? kFewInHalves : kFewOuterTokens);
}

double predict_panel_us(const Problem& problem, const plan::MachineRates& rates, double peak,
                        const PanelCosts& costs) {
  // The flops of one step of one vector: 2 x 8 outputs x lanes x the k values per cell.
  const double step_us = 1e6 * 2.0 * kGroup * costs.lanes * costs.depth_step / (peak > 0 ? peak : 100e9);
  return problem.direction == Direction::dw ? predict_outer_us(problem, rates, step_us, costs)
                                            : predict_strips_us(problem, rates, step_us, costs);
}

double predict_decode_us(const Problem& p, const plan::MachineRates& rates, const DecodeCosts& c) {
  const bool forward = p.direction == Direction::forward;
  const double elements = elements_of(p), outputs = static_cast<double>(forward ? p.rows : p.cols);
  const double tokens = p.m <= 1 ? 1 : p.m <= 2 ? 2 : p.m <= 4 ? 4 : 8;
  const double widen = size_of(p.dtype) == 2 ? c.widen : 0;
  const double token_bytes =
      tokens * static_cast<double>(forward ? p.cols : p.rows) * static_cast<double>(size_of(p.dtype));
  const double token_element = c.token_element * (forward && token_bytes >= kL1Bytes ? kTokensBeyondL1 : 1);
  // The columns that dx computes at once: two vectors if their sums fit into half of the registers.
  const bool two_vectors = p.block.cols >= 2 * c.lanes && 2 * tokens <= c.lanes;
  const double strip = c.lanes * (two_vectors ? 2 : 1);
  const double cycles = elements * (c.element + widen + tokens * token_element) +
                        outputs * (c.out + tokens * c.token_out) +
                        (forward ? 0 : elements / strip * (c.row + tokens * c.token_row));
  const double compute = cycle_us(rates) * cycles;
  // Most reads overlap the products.
  const Waits& waits = forward ? kDecodeForwardWaits : kDecodeDxWaits;
  const double us = std::hypot(compute, memory_us(p, rates, waits));
  // Decode cuts its tasks by elements, not by products: see decode.cpp.
  return with_threads(us, p, (elements + static_cast<double>(p.rows + p.cols)) / kTaskElements, waits.fork);
}

}  // namespace sparseloom::kernels::cpu
