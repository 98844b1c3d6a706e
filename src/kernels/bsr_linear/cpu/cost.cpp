// The model that predicts a call's time from a kernel's fitted costs.
#include "kernels/bsr_linear/cpu/cost.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "kernels/bsr_linear/cpu/cell.h"
#include "kernels/bsr_linear/cpu/panel.h"

namespace sparseloom::kernels::cpu {
namespace {

using core::ceil_div;
using core::round_up;

constexpr double kAvx2FlopsPerCycle = 32;
constexpr double kL1Bytes = 32 << 10;
// Decode's forward takes this much longer for each token where the tokens outgrow L1. Fitted: 8 tokens of
// 2048 features took 1.45 (fp32) and 1.3 (bf16) of the model's time.
constexpr double kTokensBeyondL1 = 1.4;
constexpr double kCallUs = 0.5;
constexpr double kForkUs = 4;  // waking and joining the threads
// Values up to this size stay in cache from panel to panel and from call to call.
constexpr double kResidentBytes = 16e6;
// Up to this many tokens the weights come from memory once, and panel kernels (and dx of any kind) hide
// little of that behind their products, so the two times are added. Decode's forward overlaps them and was
// measured faster for 5 to 8 tokens; without this rule the plan never chose it. The log has the figures.
constexpr std::int64_t kFewTokens = 16;
// Bandwidth of streaming reads beyond the last-level cache over that of copies inside it.
constexpr double kMemoryShareOfCopy = 0.15;

// The most tokens of outer_few; and in blocks of half a vector, where it has only four sums side by side.
// With more tokens the larger tiles of `outer` and its prefetches are as fast or faster.
constexpr std::int64_t kFewOuterTokens = 256, kFewInHalves = 64;
// dw of few tokens: products over their time at the peak rate, in whole vectors and in blocks of half a
// vector; cycles for each stored element that is written, of fp32 and of 16 bits. Fitted to 1 to 150 tokens
// of 1024 x 4096 at density .2 on a Zen 4, the same with AVX2 and AVX-512.
constexpr double kFewVectors = 1.08, kFewHalves = 1.5, kFewElement = 0.19, kFewElement16 = 0.4;

// A cycle of PanelCosts on this machine.
double cycle_us(const plan::MachineRates& rates) {
  return 1e6 * kAvx2FlopsPerCycle / (rates.f32_avx2 > 0 ? rates.f32_avx2 : 100e9);
}

double elements_of(const Problem& p) { return static_cast<double>(p.blocks) * p.block.rows * p.block.cols; }

// Time for one pass over the values, of which `resident` bytes stay in cache.
double stream_us(const Problem& p, const plan::MachineRates& rates, double resident = kResidentBytes) {
  const double bytes = elements_of(p) * static_cast<double>(size_of(p.dtype));
  const double rate = kMemoryShareOfCopy * (rates.copy_bytes > 0 ? rates.copy_bytes : 50e9);
  return 1e6 * std::max(0.0, bytes - resident) / rate;
}

double with_threads(double us, const Problem& p, double products) {
  const double tasks = std::clamp(products / kTaskProducts, 1.0, static_cast<double>(std::max(1, p.threads)));
  return kCallUs + us / tasks + (tasks > 1 ? kForkUs : 0);
}

double predict_strips_us(const Problem& p, const plan::MachineRates& rates, double step_us,
                         const PanelCosts& c) {
  const bool forward = p.direction == Direction::forward;
  const double cycle = cycle_us(rates);
  const double outputs = static_cast<double>(forward ? p.rows : p.cols),
               depth = static_cast<double>(forward ? p.cols : p.rows);
  const double output_block = forward ? p.block.rows : p.block.cols;
  const std::int64_t vectors = ceil_div(p.m, c.lanes), panels = ceil_div(vectors, kMaxVectors);
  const double elements = elements_of(p),
               steps = elements / kGroup / c.depth_step;  // of all strips of one panel
  // Panels are as even as possible: `wide` of them have one vector more than the others.
  const std::int64_t narrow_width = panels ? vectors / panels : 0, wide = panels ? vectors % panels : 0;
  const auto panel_us = [&](std::int64_t width) {
    const double compute = width * c.vectors[width] * steps * step_us +
                           cycle * static_cast<double>(p.blocks) * output_block / kGroup * c.block +
                           (size_of(p.dtype) == 2 && c.depth_step == 1 ? cycle * elements * c.widen : 0);
    if (p.m <= kFewTokens) return compute + stream_us(p, rates, 0);
    return std::max(compute, stream_us(p, rates));
  };
  double us = static_cast<double>(panels - wide) * panel_us(narrow_width);
  if (wide) us += static_cast<double>(wide) * panel_us(narrow_width + 1);
  us += cycle * static_cast<double>(vectors * c.lanes) * (outputs * c.out + depth * c.pack);
  if (!forward && c.depth_step == 2) us += cycle * elements * c.transpose;
  return with_threads(us, p, static_cast<double>(p.m) * (elements + outputs + depth));
}

double predict_outer_us(const Problem& p, const plan::MachineRates& rates, double step_us,
                        const PanelCosts& c) {
  const double cycle = cycle_us(rates);
  const double elements = elements_of(p), m = static_cast<double>(p.m);
  const double rows = static_cast<double>(round_up(p.rows, p.block.rows)),
               cols = static_cast<double>(round_up(p.cols, p.block.cols));
  const double block_rows = rows / p.block.rows;
  // A block row's stored columns are divided into full triples of vectors and a rest.
  const double row_vectors = block_rows > 0 ? elements / p.block.rows / block_rows / c.lanes : 0;
  const double triples = std::floor(row_vectors / kMaxVectors);
  const int rest = static_cast<int>(std::ceil(row_vectors - triples * kMaxVectors - 1e-9));
  const double pack_us = cycle * m * (rows + cols) * c.outer_pack;
  const double steps = std::ceil(m / c.depth_step);
  if (few_outer_tokens(c.lanes, p.block, p.m)) {
    const double products_us =
        elements / kGroup / c.lanes * steps * step_us * (p.block.cols < c.lanes ? kFewHalves : kFewVectors);
    const double write = size_of(p.dtype) == 2 && !p.accumulate ? kFewElement16 : kFewElement;
    return with_threads(products_us + std::max(cycle * elements * write, stream_us(p, rates)) + pack_us, p,
                        m * (elements + rows + cols));
  }
  const double tiles = block_rows * p.block.rows / kGroup * steps * step_us;
  double us = tiles * (triples * kMaxVectors * c.outer_vectors[kMaxVectors] + rest * c.outer_vectors[rest]);
  us += std::max(cycle * elements * c.outer_element, stream_us(p, rates)) + pack_us;
  return with_threads(us, p, m * (elements + rows + cols));
}

}  // namespace

bool few_outer_tokens(int lanes, BlockShape block, std::int64_t m) {
  return m <= (block.cols < lanes ? kFewInHalves : kFewOuterTokens);
}

double predict_panel_us(const Problem& problem, const plan::MachineRates& rates, double peak,
                        const PanelCosts& costs) {
  // The flops of one step of one vector: 2 x 8 outputs x lanes x the k values of a cell.
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
  const double cycles = elements * (c.element + widen + tokens * token_element) +
                        outputs * (c.out + tokens * c.token_out) +
                        (forward ? 0 : elements / p.block.cols * tokens * c.row);
  const double compute = cycle_us(rates) * cycles;
  const double us = forward ? std::max(compute, stream_us(p, rates)) : compute + stream_us(p, rates, 0);
  // Decode cuts its tasks by elements, not by products: see decode.cpp.
  const double tasks = std::clamp((elements + static_cast<double>(p.rows + p.cols)) / kTaskElements, 1.0,
                                  static_cast<double>(std::max(1, p.threads)));
  return kCallUs + us / tasks + (tasks > 1 ? kForkUs : 0);
}

}  // namespace sparseloom::kernels::cpu
