// The rows of the expand kernels: refusals, predicted times and launches.
#include "kernels/bitmap_linear/rows.h"

#include <algorithm>
#include <cmath>

#include "kernels/bitmap_linear/cpu/dw.h"
#include "kernels/bitmap_linear/cpu/expand.h"
#include "kernels/generic/scaled_rows.h"
#include "kernels/shared/cost/halved.h"
#include "plan/machine.h"
#include "sparseloom/generic/reference.h"

namespace sparseloom::kernels {
namespace {

#if defined(__x86_64__)

using plan::MachineRates;
using runtime::Isa;

/// Cycles in which a core does 32 fp32 flops by AVX2 FMA: per vector of W for expanding it in each pass, and
/// for multiplying it with a token.
struct Costs {
  double expand, product;
};

struct Method {
  const char* name;
  Isa needs;
  const cpu::BitmapOps* ops;
  const cpu::BitmapDwOps* dw;  // or null
  double lanes;                // of a vector
  Costs few, many, few_dx, many_dx, of_dw;
  bool (*takes)(DType);
  double with_amx = 1;  // times that a CPU with AMX takes its cycles
};

constexpr bool takes_floats(DType dtype) { return size_of(dtype) <= 4 && !is_scaled(dtype); }

// avx2_bitmap's costs are fitted to a Zen 3, those of AVX-512 to a Zen 5; the log has the measurements.
constexpr Isa kPairs = Isa::avx512_bf16 | Isa::avx512_vbmi2, kQuads = Isa::avx512_vnni | Isa::avx512_vbmi2;
constexpr Method kMethods[] = {
    {"avx512bf16_bitmap",
     kPairs,
     &cpu::kBitmapPairs,
     &cpu::kBitmapDwPairs,
     32,
     {2.9, 1.5},
     {4.8, 0.6},
     {4, 0.5},
     {5, 0.54},
     {5, 0.48},
     [](DType dtype) { return dtype == DType::bf16; }},
    {"avx512_bitmap",
     Isa::avx512,
     &cpu::kBitmapAvx512,
     &cpu::kBitmapDwAvx512,
     16,
     {2.8, 0.6},
     {3.4, 0.6},
     {3.2, 0.78},
     {4.5, 0.54},
     {4.6, 0.5},
     takes_floats,
     1.9},
    {"avx2_bitmap",
     Isa::avx2,
     &cpu::kBitmapAvx2,
     nullptr,
     8,
     {1.7, 0.95},
     {3.2, 0.83},
     {8, 1.3},
     {9, 0.95},
     {},
     takes_floats},
};
constexpr Method kScaledMethod{"avx512vnni_bitmap",
                               kQuads,
                               &cpu::kBitmapQuads,
                               nullptr,
                               64,
                               {4.2, 1.1},
                               {5, 1.05},
                               {},
                               {},
                               {},
                               [](DType dtype) { return dtype == DType::i8; }};

/// How many times a Zen 5's cycles this machine takes: avx512_bitmap gained 1.4 over avx2_bitmap on an
/// Emerald Rapids, which AMX tells, and 2.6 on a Zen 5. Gradients lose more where vectors are halved: they
/// store more of them (fitted to a Zen 4, as is forward).
double slower(const Method& method, Direction direction, const plan::Machine& machine) {
  if (!method.needs.has(Isa::avx512)) return 1;
  if (machine.isa.has(Isa::amx)) return method.with_amx;
  const double share = direction == Direction::forward ? 1 : direction == Direction::dx ? 1.3 : 1.1;
  return 1 + share * (halved_vectors(machine.rates) - 1);
}

double cycles(const Method& method, const LinearProblem& p) {
  const bool forward = p.direction == Direction::forward;
  const double m = static_cast<double>(p.m), rows = static_cast<double>(p.rows),
               cols = static_cast<double>(p.cols);
  if (p.direction == Direction::dw)
    return rows * cols / method.lanes * (method.of_dw.expand + m * method.of_dw.product) +
           2 * m * (rows + cols);
  const bool few = p.m <= cpu::kBitmapFewTokens;
  const double passes = std::ceil(m / static_cast<double>(few ? cpu::kBitmapFewTokens : cpu::kBitmapTokens));
  const Costs costs = forward ? (few ? method.few : method.many) : (few ? method.few_dx : method.many_dx);
  const double in = forward ? cols : rows, out = forward ? rows : cols;
  return rows * cols / method.lanes * (passes * costs.expand + m * costs.product) + m * (0.5 * in + 2 * out);
}

double predict_us(const Method& method, const LinearProblem& p, const plan::Machine& machine) {
  const MachineRates& rates = machine.rates;
  constexpr double kFlopsPerCycle = 32, kMemoryShareOfCopy = 0.2, kResidentBytes = 16e6;
  constexpr double kCallUs = 1, kForkUs = 5, kWorthUs = 5;
  const double cycle_us = 1e6 * kFlopsPerCycle / (rates.f32_avx2 > 0 ? rates.f32_avx2 : 100e9);
  const double bytes = static_cast<double>(p.stored) * static_cast<double>(size_of(p.dtype)) +
                       static_cast<double>(p.rows * p.cols) / 8;
  const double memory = kMemoryShareOfCopy * (rates.copy_bytes > 0 ? rates.copy_bytes : 50e9);
  const double us = std::max(cycle_us * slower(method, p.direction, machine) * cycles(method, p),
                             1e6 * std::max(0.0, bytes - kResidentBytes) / memory);
  const double tasks = std::clamp(us / kWorthUs, 1.0, static_cast<double>(std::max(1, p.threads)));
  return kCallUs + us / tasks + (tasks > 1 ? kForkUs : 0);
}

/// The sizes of the index, on which alone a workspace depends.
BitmapView sizes_of(const LinearProblem& p) {
  BitmapView w;
  w.rows = p.rows, w.cols = p.cols, w.stored = p.stored;
  return w;
}

Refusal refuse(const Method& method, const LinearProblem& p, const plan::Machine& machine) {
  if (method.needs.has(Isa::avx512_vbmi2) && !machine.isa.has(Isa::avx512_vbmi2))
    return {"needs avx512_vbmi2, the machine (or SPARSELOOM_ISA) allows {}", runtime::name_of(machine.isa)};
  if (!machine.isa.has(method.needs))
    return {"needs {}, the machine (or SPARSELOOM_ISA) allows {}", runtime::name_of(method.needs),
            runtime::name_of(machine.isa)};
  if (p.direction == Direction::dx && method.ops->dx == nullptr) return "supports forward only";
  if (p.direction == Direction::dw && method.dw == nullptr) return "supports forward and dx only";
  static_assert(cpu::kBitmapDwMostBytes >> 20 == 64);
  if (p.direction == Direction::dw &&
      cpu::bitmap_dw_workspace(*method.dw, sizes_of(p), p.m) > cpu::kBitmapDwMostBytes)
    return "multiplies up to 64 MiB of tokens in cells for dw";
  if (!method.takes(p.dtype)) return {"does not support {}", name_of(p.dtype)};
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "has nothing to multiply: a size is 0";
  return {};
}

template <class V, const Method& method>
Row<V> row() {
  const auto propose = [](const typename V::Problem& p, const plan::Machine& machine,
                          Proposals<V>& out) -> Refusal {
    if (const Refusal refusal = refuse(method, p, machine)) return refusal;
    out.add({{},
             predict_us(method, p, machine),
             p.direction == Direction::dw
                 ? cpu::bitmap_dw_workspace(*method.dw, sizes_of(p), p.m)
                 : cpu::bitmap_workspace(*method.ops, sizes_of(p), p.direction, p.dtype, p.m, p.threads)});
    return {};
  };
  const auto launch = [](const typename V::Args& args, const typename V::Schedule&,
                         const Executor& executor) {
    if (args.product.direction != Direction::dw)
      cpu::run_bitmap(*method.ops, args.product, args.view, executor);
    else if (args.product.accumulate)  // no operator asks for it; the plan does not know of it
      generic::dw<Bitmap>(args.product, args.view, executor);
    else
      cpu::run_bitmap_dw(*method.dw, args.product, args.view, executor);
    return 0;
  };
  return {method.name, Placement::cpu, propose, launch};
}

template <const Method& method>
BitmapKernel kernel() {
  return {method.name,
          [](const LinearProblem& p, const plan::Machine& machine) { return refuse(method, p, machine); },
          [](const LinearProblem& p, const plan::Machine& machine) { return predict_us(method, p, machine); },
          [](const LinearProblem& p) {
            return cpu::bitmap_workspace(*method.ops, sizes_of(p), p.direction, p.dtype, p.m, p.threads);
          },
          [](const MatmulArgs& args, const BitmapView& w, const Executor& executor) {
            cpu::run_bitmap(*method.ops, args, w, executor);
          }};
}

#endif

}  // namespace

std::span<const BitmapKernel> bitmap_kernels() {
#if defined(__x86_64__)
  static const BitmapKernel kernels[] = {kernel<kMethods[0]>(), kernel<kMethods[1]>()};
  return kernels;
#else
  return {};
#endif
}

std::span<const Row<BitmapLinear>> bitmap_cpu_rows() {
#if defined(__x86_64__)
  static const Row<BitmapLinear> rows[] = {row<BitmapLinear, kMethods[0]>(), row<BitmapLinear, kMethods[1]>(),
                                           row<BitmapLinear, kMethods[2]>()};
  return rows;
#else
  return {};
#endif
}

std::span<const Row<BitmapScaled>> bitmap_scaled_cpu_rows() {
  static const Row<BitmapScaled> rows[] = {
#if defined(__x86_64__)
    row<BitmapScaled, kScaledMethod>(),
#endif
    generic::scaled::expand_row<Bitmap>(),
    generic::scaled::reference_row<Bitmap>()
  };
  return rows;
}

}  // namespace sparseloom::kernels
