// The rows of the lanes kernels and the single one: refusals, predicted times and launches.
#include "kernels/csr_linear/rows.h"

#include <algorithm>
#include <cmath>

#include "kernels/csr_linear/cpu/lanes.h"
#include "kernels/csr_linear/cpu/single.h"
#include "plan/machine.h"

namespace sparseloom::kernels {
namespace {

#if defined(__x86_64__)

using plan::MachineRates;
using runtime::Isa;

/// The kernel of one instruction set: either lanes or single is null.
struct Method {
  const char* name;
  Isa needs;
  const cpu::LanesOps* lanes;
  const cpu::SingleOps* single;
};

constexpr Method kMethods[] = {
    {"avx512_lanes", Isa::avx512, &cpu::kCsrLanesAvx512, nullptr},
    {"avx2_lanes", Isa::avx2, &cpu::kCsrLanesAvx2, nullptr},
    {"avx2_single", Isa::avx2, nullptr, &cpu::kCsrSingleAvx2},
};

Refusal refuse(const Method& method, const LinearProblem& p, const plan::Machine& machine) {
  if (!machine.isa.has(method.needs))
    return {"needs {}, the machine (or SPARSELOOM_ISA) allows {}", runtime::name_of(method.needs),
            runtime::name_of(machine.isa)};
  if (size_of(p.dtype) > 4 || is_scaled(p.dtype)) return {"does not support {}", name_of(p.dtype)};
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "has nothing to multiply: a size is 0";
  if (method.single != nullptr && p.m > 1) return {"supports a single token, the call has {}", p.m};
  return {};
}

/// Microseconds per cycle in which one core does 32 fp32 flops by AVX2 FMA.
double cycle_us(const MachineRates& rates) {
  constexpr double kFlopsPerCycle = 32;
  return 1e6 * kFlopsPerCycle / (rates.f32_avx2 > 0 ? rates.f32_avx2 : 100e9);
}

double on_threads(double us, int threads) {
  constexpr double kCallUs = 1, kForkUs = 5, kWorthUs = 5;
  const double tasks = std::clamp(us / kWorthUs, 1.0, static_cast<double>(std::max(1, threads)));
  return kCallUs + us / tasks + (tasks > 1 ? kForkUs : 0);
}

/// Cycles of one thread, on a Zen 4; the log has the measurements.
double lanes_cycles(const cpu::LanesOps& ops, const LinearProblem& p, int vectors) {
  const bool wide = ops.lanes > 8;
  const double line = wide ? 1.0 : 0.6;  // cycles per vector of a panel in L1
  const double tokens = static_cast<double>(vectors * ops.lanes);
  const double panels = std::ceil(static_cast<double>(p.m) / tokens);
  const double rows = static_cast<double>(p.rows), cols = static_cast<double>(p.cols);
  const double panel_bytes = 4 * tokens * cols;
  // Additional cycles for a vector from L2, or from the cache that all cores share.
  const double far = panel_bytes < 24e3 ? 0 : panel_bytes < 0.7e6 ? 1.0 : 3.0;
  const double scale = wide ? 1 : 0.5;
  const double vector = p.direction == Direction::forward ? line + scale * far
                        : p.direction == Direction::dx    ? 2 * (line + scale * far)
                                                          : line + scale * far + 0.8;
  const double element = p.direction == Direction::dw ? 2.5 : 1.5;
  const double features = p.direction == Direction::forward ? cols + rows
                          : p.direction == Direction::dx    ? rows + 1.5 * cols
                                                            : rows + cols;
  return panels * (static_cast<double>(p.stored) * (element + vectors * vector) +
                   features * vectors * (wide ? 4 : 2.5) + rows * 12);
}

double single_us(const LinearProblem& p, const MachineRates& rates) {
  const double element = p.direction == Direction::dx ? 1.8 : 0.9;
  const double cycles = static_cast<double>(p.stored) * element + static_cast<double>(p.rows) * 6 +
                        0.3 * static_cast<double>(p.cols);
  return on_threads(cycle_us(rates) * cycles, p.threads);
}

/// The sizes of the index, on which alone a workspace depends.
CsrView sizes_of(const LinearProblem& p) {
  CsrView w;
  w.rows = p.rows, w.cols = p.cols, w.stored = p.stored;
  return w;
}

template <std::size_t kMethod>
CsrRow row() {
  static constexpr const Method& method = kMethods[kMethod];
  const auto propose = [](const LinearProblem& p, const plan::Machine& machine,
                          Proposals<CsrLinear>& out) -> Refusal {
    if (const Refusal why = refuse(method, p, machine)) return why;
    if (method.single != nullptr) {
      out.add({{}, single_us(p, machine.rates), cpu::single_workspace(sizes_of(p), p.direction, p.dtype)});
      return {};
    }
    // One thread's time decides the vectors of a panel: the order of sums depends on them, and bits must not
    // depend on the number of threads.
    int vectors = 4;
    for (const int fewer : {2, 1})
      if (lanes_cycles(*method.lanes, p, fewer) < lanes_cycles(*method.lanes, p, vectors)) vectors = fewer;
    out.add({{vectors},
             on_threads(cycle_us(machine.rates) * lanes_cycles(*method.lanes, p, vectors), p.threads),
             cpu::lanes_workspace(*method.lanes, sizes_of(p), p.direction, p.dtype, p.m, vectors)});
    return {};
  };
  const auto launch = [](const CsrLinear::Args& args, const CsrLinear::Schedule& schedule,
                         const Executor& executor) {
    if (method.single != nullptr)
      cpu::run_single(*method.single, args.product, args.view, executor);
    else
      cpu::run_lanes(*method.lanes, args.product, args.view, schedule.variant, executor);
    return 0;
  };
  return {method.name, Placement::cpu, propose, launch};
}

#endif

}  // namespace

std::span<const CsrRow> csr_cpu_rows() {
#if defined(__x86_64__)
  static const CsrRow rows[] = {row<0>(), row<1>(), row<2>()};
  return rows;
#else
  return {};
#endif
}

}  // namespace sparseloom::kernels
