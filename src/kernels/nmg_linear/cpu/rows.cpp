// The rows of the grouped kernels: refusals, predicted times and launches.
#include "kernels/nmg_linear/rows.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/nmg_linear/cpu/grouped.h"
#include "kernels/shared/cost/halved.h"
#include "plan/machine.h"

namespace sparseloom::kernels {
namespace {

#if defined(__x86_64__)

using runtime::Isa;

/// The kernels of one instruction set.
struct Method {
  const char* name;
  Isa needs;
  const cpu::GroupedOps* (*ops)(DType);
};

constexpr Method kMethods[] = {
    {"avx512bf16_grouped", Isa::avx512_bf16, cpu::grouped_avx512bf16},
    {"avx512_grouped", Isa::avx512, cpu::grouped_avx512},
    {"avx2_grouped", Isa::avx2, cpu::grouped_avx2},
};

/// Cycles in which a core does 32 fp32 flops by AVX2 FMA: by eight lanes fitted to two threads of a Zen 4, by
/// sixteen and those of the gradients to a Zen 5; the log has the measurements.
struct Costs {
  double group;           // per group of n values and vector of tokens: its sum is loaded and stored
  double stored;          // per stored element and vector of tokens
  double value;           // per stored element and tile: it is loaded, widened and broadcast
  double pattern;         // per use of a pattern and tile
  double pattern_vector;  // per use of a pattern and vector of tokens: its inputs are loaded
};
constexpr Costs kForward8{0.5, 0.6, 1.2, 4, 1.6}, kForward16{1.3, 0.1, 1.3, 4, 1.6}, kDx{0, 0.9, 1.3, 8, 4},
    kDxOfPairs{0.9, 0.5, 0.6, 4, 4}, kDw{0, 0.9, 1.2, 4, 1.6}, kDwOfPairs{0.6, 0.6, 1.2, 4, 1.6};
/// Of forward output by output: per entry and vector of tokens, with more for each row of pairs that is made
/// of two strips or of one; per group of n values and tiles that share its entry.
constexpr double kEntry = 1, kPairEntry = 0.92, kPairRow = 0.022, kUnpacked = 3;
constexpr double kX = 2;  // per feature and vector of tokens: transposing
/// Of a single token, per group, stored element and use of a pattern.
constexpr double kGroupOfOne = 0.9, kStoredOfOne = 1, kPatternOfOne = 1.5;

const Costs& costs_of(const LinearProblem& p, const NmgView& w, const cpu::GroupedOps& ops) {
  const bool pairs = cpu::takes_cells(ops, p.direction, p.m, w) && ops.tokens_of_cell > 1;
  switch (p.direction) {
    case Direction::forward: return ops.lanes > 8 ? kForward16 : kForward8;
    case Direction::dx: return pairs ? kDxOfPairs : kDx;
    default: return pairs ? kDwOfPairs : kDw;
  }
}

/// The view's sizes for a problem, without its order.
NmgView shape_of(const LinearProblem& p) {
  return nmg_view("nmg_linear", p.rows, p.cols, p.shape & 0xffff, p.shape >> 16 & 0xffff, p.shape >> 32);
}

/// Of m tokens as `vectors` vectors, without the transposing.
double cycles_of_outputs(const cpu::GroupedOps& ops, const LinearProblem& p, const NmgView& w,
                         double vectors) {
  const cpu::OutputBlocks block = cpu::output_blocks(ops, w, cpu::kMostVectors);
  const auto entries = static_cast<double>(block.entries);
  const double entry =
      block.pairs ? kPairEntry + kPairRow * static_cast<double>(block.rows) / entries : kEntry;
  const double groups = static_cast<double>(p.stored) / static_cast<double>(w.n);
  const std::int64_t sharing = cpu::kTilesOfItem * cpu::kMostVectors * ops.lanes;
  const auto times = static_cast<double>(core::ceil_div(p.m, sharing));
  return groups * (vectors * entry * entries / static_cast<double>(block.strips) + kUnpacked * times);
}

double predict_us(const LinearProblem& p, const NmgView& w, const cpu::GroupedOps& ops,
                  const plan::Machine& machine) {
  constexpr double kFlopsPerCycle = 32, kCallUs = 2, kForkUs = 5, kMemoryShareOfCopy = 0.3;
  const Costs& c = costs_of(p, w, ops);
  const double flops = machine.rates.f32_avx2 > 0 ? machine.rates.f32_avx2 : 100e9;
  const double cycle_us = 1e6 * kFlopsPerCycle / flops;
  const bool in_cells = cpu::takes_cells(ops, p.direction, p.m, w) && ops.tokens_of_cell > 1;
  const std::int64_t in_all = core::ceil_div(p.m, ops.lanes * (in_cells ? ops.tokens_of_cell : 1));
  const auto vectors = static_cast<double>(in_all);
  const std::int64_t width = std::max<std::int64_t>(1, cpu::grouped_vectors(ops, p.direction, p.m, w));
  const auto tiles = static_cast<double>(core::ceil_div(in_all, width));
  const double stored = static_cast<double>(p.stored), groups = stored / static_cast<double>(w.n);
  const double patterns = groups / static_cast<double>(w.g);
  const double transposing = vectors * kX * static_cast<double>(p.cols + p.rows);
  const double cycles =
      cpu::takes_outputs(ops, p.direction, p.m, w) ? cycles_of_outputs(ops, p, w, vectors) + transposing
      : p.m == 1 ? groups * kGroupOfOne + stored * kStoredOfOne + patterns * kPatternOfOne
                 : vectors * (groups * c.group + stored * c.stored + patterns * c.pattern_vector) +
                       tiles * (stored * c.value + patterns * c.pattern) + transposing;
  // Of halved vectors, most instructions are two: between 1.4 (dX) and 1.8 times (forward, dW) a Zen 5's
  // cycles on a Zen 4. A single token is multiplied by scalars.
  constexpr double kHalved = 0.6;
  const double slower = ops.lanes > 8 && p.m > 1 ? 1 + kHalved * (halved_vectors(machine.rates) - 1) : 1;
  const double bytes = stored * static_cast<double>(size_of(p.dtype)) + 2 * groups;
  const double copy = machine.rates.copy_bytes > 0 ? machine.rates.copy_bytes : 50e9;
  const double us = std::max(cycle_us * slower * cycles, 1e6 * bytes / (kMemoryShareOfCopy * copy));
  const double tasks =
      std::clamp(static_cast<double>(p.m) * stored / 250e3, 1.0, static_cast<double>(p.threads));
  return kCallUs + us / tasks + (tasks > 1 ? kForkUs : 0);
}

template <const Method& method>
Row<NmgLinear> row() {
  const auto propose = [](const LinearProblem& p, const plan::Machine& machine,
                          Proposals<NmgLinear>& out) -> Refusal {
    if (!machine.isa.has(method.needs))
      return {"needs {}, the machine (or SPARSELOOM_ISA) allows {}", runtime::name_of(method.needs),
              runtime::name_of(machine.isa)};
    const cpu::GroupedOps* const ops = method.ops(p.dtype);
    if (ops == nullptr) return {"does not support {}", name_of(p.dtype)};
    if (p.direction != Direction::forward && (p.m == 0 || p.rows == 0 || p.cols == 0))
      return "has nothing to multiply: a size is 0";
    if (p.activation != Activation::none || p.residual) return "adds a bias and nothing else";
    const NmgView w = shape_of(p);
    out.add({{},
             predict_us(p, w, *ops, machine),
             cpu::grouped_workspace(*ops, p.direction, p.dtype, p.m, w, p.threads)});
    return {};
  };
  const auto launch = [](const NmgLinear::Args& args, const NmgLinear::Schedule&, const Executor& executor) {
    cpu::run_grouped(*method.ops(args.product.dtype), args.product, args.view, executor);
    return 0;
  };
  return {method.name, Placement::cpu, propose, launch};
}

#endif

}  // namespace

std::span<const Row<NmgLinear>> nmg_cpu_rows() {
#if defined(__x86_64__)
  static const Row<NmgLinear> rows[] = {row<kMethods[0]>(), row<kMethods[1]>(), row<kMethods[2]>()};
  return rows;
#else
  return {};
#endif
}

}  // namespace sparseloom::kernels
