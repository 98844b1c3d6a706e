// The rows of the expand kernels: refusals, predicted times and launches.
#include "kernels/bitmap_linear/rows.h"

#include <algorithm>
#include <cmath>

#include "kernels/bitmap_linear/cpu/expand.h"
#include "plan/machine.h"

namespace sparseloom::kernels {
namespace {

#if defined(__x86_64__)

using plan::MachineRates;
using runtime::Isa;

struct Method {
  const char* name;
  Isa needs;
  const cpu::BitmapOps* ops;
  double lanes;  // of a vector; for AVX-512 what an Emerald Rapids gains over avx2_bitmap: 1.4, not 2
};

constexpr Method kMethods[] = {
    {"avx512_bitmap", Isa::avx512, &cpu::kBitmapAvx512, 11.2},
    {"avx2_bitmap", Isa::avx2, &cpu::kBitmapAvx2, 8},
};

/// Cycles in which a core does 32 fp32 flops by AVX2 FMA, fitted to a Zen 3; the log has the measurements.
double cycles(const Method& method, const LinearProblem& p) {
  const bool forward = p.direction == Direction::forward;
  const double m = static_cast<double>(p.m), rows = static_cast<double>(p.rows),
               cols = static_cast<double>(p.cols);
  const bool few = p.m <= cpu::kBitmapFewTokens;
  const double passes = std::ceil(m / static_cast<double>(cpu::kBitmapTokens));
  // Per vector of W: expanding it in each pass, and multiplying it with a token.
  const double expand = forward ? (few ? 1.7 : 3.2) : (few ? 8 : 9);
  const double product = forward ? (few ? 0.95 : 0.83) : (few ? 1.3 : 0.95);
  const double in = forward ? cols : rows, out = forward ? rows : cols;
  return rows * cols / method.lanes * (passes * expand + m * product) + m * (0.5 * in + 2 * out);
}

double predict_us(const Method& method, const LinearProblem& p, const MachineRates& rates) {
  constexpr double kFlopsPerCycle = 32, kMemoryShareOfCopy = 0.2, kResidentBytes = 16e6;
  constexpr double kCallUs = 1, kForkUs = 5, kWorthUs = 5;
  const double cycle_us = 1e6 * kFlopsPerCycle / (rates.f32_avx2 > 0 ? rates.f32_avx2 : 100e9);
  const double bytes = static_cast<double>(p.stored) * static_cast<double>(size_of(p.dtype)) +
                       static_cast<double>(p.rows * p.cols) / 8;
  const double memory = kMemoryShareOfCopy * (rates.copy_bytes > 0 ? rates.copy_bytes : 50e9);
  const double us =
      std::max(cycle_us * cycles(method, p), 1e6 * std::max(0.0, bytes - kResidentBytes) / memory);
  const double tasks = std::clamp(us / kWorthUs, 1.0, static_cast<double>(std::max(1, p.threads)));
  return kCallUs + us / tasks + (tasks > 1 ? kForkUs : 0);
}

/// The sizes of the index, on which alone a workspace depends.
BitmapView sizes_of(const LinearProblem& p) {
  BitmapView w;
  w.rows = p.rows, w.cols = p.cols, w.stored = p.stored;
  return w;
}

template <std::size_t kMethod>
Row<BitmapLinear> row() {
  static constexpr const Method& method = kMethods[kMethod];
  const auto propose = [](const LinearProblem& p, const plan::Machine& machine,
                          Proposals<BitmapLinear>& out) -> Refusal {
    if (!machine.isa.has(method.needs))
      return {"needs {}, the machine (or SPARSELOOM_ISA) allows {}", runtime::name_of(method.needs),
              runtime::name_of(machine.isa)};
    if (p.direction == Direction::dw) return "supports forward and dx only";
    if (size_of(p.dtype) > 4 || is_scaled(p.dtype)) return {"does not support {}", name_of(p.dtype)};
    if (p.m == 0 || p.rows == 0 || p.cols == 0) return "has nothing to multiply: a size is 0";
    out.add({{},
             predict_us(method, p, machine.rates),
             cpu::bitmap_workspace(sizes_of(p), p.direction, p.dtype, p.m, p.threads)});
    return {};
  };
  const auto launch = [](const BitmapLinear::Args& args, const BitmapLinear::Schedule&,
                         const Executor& executor) {
    cpu::run_bitmap(*method.ops, args.product, args.view, executor);
    return 0;
  };
  return {method.name, Placement::cpu, propose, launch};
}

#endif

}  // namespace

std::span<const Row<BitmapLinear>> bitmap_cpu_rows() {
#if defined(__x86_64__)
  static const Row<BitmapLinear> rows[] = {row<0>(), row<1>()};
  return rows;
#else
  return {};
#endif
}

}  // namespace sparseloom::kernels
