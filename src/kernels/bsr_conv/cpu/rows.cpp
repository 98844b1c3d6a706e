// The rows: their refusals, predicted times, workspaces and launches.
#include "kernels/bsr_conv/rows.h"

#include "kernels/bsr_conv/cpu/product.h"
#include "kernels/bsr_linear/cpu/ops.h"
#include "kernels/shared/cost/cost_terms.h"
#include "plan/machine.h"

namespace sparseloom::kernels {
namespace {

#if defined(__x86_64__)

using bsr_conv::Conv;
using runtime::Isa;

/// The panel kernels of a row.
struct Method {
  const char* name;
  Isa needs;
  const cpu::PanelOps* ops;
  const cpu::PanelCosts* costs;
  double plan::MachineRates::*peak;
  bool bf16_only;
};

constexpr Method kMethods[] = {
    {"avx512bf16_conv", Isa::avx512_bf16, &cpu::kAvx512Bf16Panel, &cpu::kAvx512Bf16PanelCosts,
     &plan::MachineRates::bf16_avx512, true},
    {"avx512_conv", Isa::avx512, &cpu::kAvx512Panel, &cpu::kAvx512PanelCosts, &plan::MachineRates::f32_avx512,
     false},
    {"avx2_conv", Isa::avx2, &cpu::kAvx2Panel, &cpu::kAvx2PanelCosts, &plan::MachineRates::f32_avx2, false},
};
constinit Runs runs[] = {Runs{"avx512bf16_conv"}, Runs{"avx512_conv"}, Runs{"avx2_conv"}};

Refusal refuse(const Method& method, const bsr_conv::Problem& p, const plan::Machine& machine) {
  if (!machine.isa.has(method.needs))
    return {"needs {}, the machine (or SPARSELOOM_ISA) allows {}", runtime::name_of(method.needs),
            runtime::name_of(machine.isa)};
  if (size_of(p.dtype) > 4 || is_scaled(p.dtype)) return {"does not support {}", name_of(p.dtype)};
  if (method.bf16_only && p.dtype != DType::bf16)
    return {"multiplies bf16 only, the dtype is {}", name_of(p.dtype)};
  if (p.direction != Direction::forward && (p.activation != Activation::none || p.residual))
    return "supports an activation and a residual in forward only";
  const std::int64_t taps = p.shape.taps(), limit = std::int64_t{1} << 31;
  if (p.blocks * taps >= limit || p.rows * taps >= limit || p.cols * taps >= limit)
    return "counts blocks and channels times taps in 31 bits, and there are more";
  if (p.direction == Direction::dx && p.shape.strides() > cpu::kMostClasses)
    return {"supports dX with a product of strides of at most {}, the product is {}", cpu::kMostClasses,
            p.shape.strides()};
  return {};
}

// Time of a product relative to a linear layer's of the same sizes: its tokens are packed from scattered
// rows, once per tap. The median of two sweeps on two threads of a Zen 4, 132 and 101 products, is .98
// (quiet) and 1.15. The former 1.45 compensated for the linear costs of that time.
constexpr double kOverLinear = 1.1;

double predict_us(const Method& method, const bsr_conv::Problem& p, const plan::Machine& machine) {
  double us = cpu::kCallUs;
  for (std::int64_t i = 0; i < cpu::products_of(p.shape, p.direction); ++i) {
    const Problem one = cpu::problem_of(p, cpu::ConvProduct(p.shape, p.direction, i));
    us +=
        kOverLinear *
        (cpu::predict_panel_us(one, machine.rates, machine.rates.*method.peak, *method.costs) - cpu::kCallUs);
  }
  return us;
}

template <int kMethod>
Row<Conv> row_of() {
  const auto propose = [](const bsr_conv::Problem& p, const plan::Machine& machine,
                          Proposals<Conv>& out) -> Refusal {
    const Method& method = kMethods[kMethod];
    if (const Refusal why = refuse(method, p, machine)) return why;
    out.add({{}, predict_us(method, p, machine), cpu::conv_workspace(*method.ops, p)});
    return {};
  };
  const auto launch = [](const bsr_conv::Args& args, const Schedule&, const Executor& executor) {
    cpu::run_conv(*kMethods[kMethod].ops, runs[kMethod], args, executor);
    return 0;
  };
  return {kMethods[kMethod].name, Placement::cpu, propose, launch};
}

#endif

}  // namespace

std::span<const ConvRow> conv_cpu_rows() {
#if defined(__x86_64__)
  static const ConvRow rows[] = {row_of<0>(), row_of<1>(), row_of<2>()};
  return rows;
#else
  return {};
#endif
}

}  // namespace sparseloom::kernels
