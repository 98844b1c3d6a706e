// The registry's rows for the CPU kernels: refusals, predicted time, workspace and launch of each. They
// choose nothing beforehand: their schedules are empty.
#include "kernels/bsr_linear/cpu/amx/tile.h"
#include "kernels/bsr_linear/cpu/ops.h"
#include "kernels/bsr_linear/cpu/panel_memory.h"
#include "kernels/bsr_linear/rows.h"
#include "kernels/shared/cost/cost_terms.h"

namespace sparseloom::kernels {
namespace {

using plan::Machine;
using runtime::Isa;

Refusal refuse_isa(Isa needed, const Machine& machine) {
  if (machine.isa.has(needed)) return {};
  return {"needs {}, the machine (or SPARSELOOM_ISA) allows {}", runtime::name_of(needed),
          runtime::name_of(machine.isa)};
}

template <Isa kIsa>
Refusal refuse_panel(const Problem& problem, const Machine& machine) {
  if (const Refusal why = refuse_isa(kIsa, machine)) return why;
  if (problem.dtype == DType::f64) return "does not support f64: only reference does";
  if (kIsa.has(Isa::avx512_bf16) && problem.dtype != DType::bf16)
    return {"multiplies bf16 only, the dtype is {}", name_of(problem.dtype)};
  return {};
}

template <Isa kIsa>
Refusal refuse_int8(const ScaledProblem& problem, const Machine& machine) {
  if (const Refusal why = refuse_isa(kIsa, machine)) return why;
  if (problem.dtype != DType::i8) return {"multiplies int8 only, the dtype is {}", name_of(problem.dtype)};
  return {};
}

template <Isa kIsa>
Refusal refuse_decode(const Problem& problem, const Machine& machine) {
  if (const Refusal why = refuse_isa(kIsa, machine)) return why;
  if (problem.dtype == DType::f64) return "does not support f64: only reference does";
  if (problem.direction == Direction::dw)
    return "supports forward and dx only: dw reads both operands in full, and panel kernels compute it";
  if (problem.m > cpu::kDecodeTokens)
    return {"supports at most {} tokens, the call has {}", cpu::kDecodeTokens, problem.m};
  if (kIsa == Isa::avx512 && problem.block.cols < 16)
    return "needs blocks of 16 columns or more to fill a vector, avx2_decode does not";
  if (kIsa == Isa::avx512_bf16) {
    if (problem.dtype != DType::bf16)
      return {"multiplies bf16 only, the dtype is {}", name_of(problem.dtype)};
    if (problem.direction != Direction::forward) return "supports forward only";
    if (problem.block.cols < 32)
      return "needs blocks of 32 columns or more to fill a vector, avx512_decode needs 16";
  }
  return {};
}

#if defined(__x86_64__)

template <Isa kIsa>
struct Panel;
template <>
struct Panel<Isa::avx2> {
  static constexpr const cpu::PanelOps& kOps = cpu::kAvx2Panel;
  static constexpr const cpu::PanelCosts& kCosts = cpu::kAvx2PanelCosts;
  static double peak(const plan::MachineRates& rates) { return rates.f32_avx2; }
};
template <>
struct Panel<Isa::avx512> {
  static constexpr const cpu::PanelOps& kOps = cpu::kAvx512Panel;
  static constexpr const cpu::PanelCosts& kCosts = cpu::kAvx512PanelCosts;
  static double peak(const plan::MachineRates& rates) { return rates.f32_avx512; }
};
template <>
struct Panel<Isa::avx512_vnni> {
  static constexpr const cpu::PanelOps& kOps = cpu::kAvx512VnniPanel;
  static constexpr const cpu::PanelCosts& kCosts = cpu::kAvx512VnniPanelCosts;
  static double peak(const plan::MachineRates& rates) { return rates.i8_avx512; }
};
template <>
struct Panel<Isa::avx512_bf16> {
  static constexpr const cpu::PanelOps& kOps = cpu::kAvx512Bf16Panel;
  static constexpr const cpu::PanelCosts& kCosts = cpu::kAvx512Bf16PanelCosts;
  static double peak(const plan::MachineRates& rates) { return rates.bf16_avx512; }
};

template <Isa kIsa>
Kernel panel_row(const char* name) {
  using P = Panel<kIsa>;
  const auto propose = [](const Problem& problem, const Machine& machine, Proposals<Linear>& out) -> Refusal {
    if (const Refusal why = refuse_panel<kIsa>(problem, machine)) return why;
    out.add({{},
             cpu::predict_panel_us(problem, machine.rates, P::peak(machine.rates), P::kCosts),
             problem.direction == Direction::dw ? cpu::panel_dw_workspace(P::kOps.depth_step, problem)
                                                : cpu::PanelMemory(P::kOps, problem).bytes});
    return {};
  };
  const auto launch = [](const MatmulArgs& args, const Schedule&, const Executor& executor) {
    args.direction == Direction::dw ? cpu::run_panel_dw(P::kOps, args, executor)
                                    : cpu::run_panel(P::kOps, args, executor);
    return 0;
  };
  return {{name, Placement::cpu, propose, launch}, kIsa};
}

ScaledKernel int8_panel_row(const char* name) {
  using P = Panel<Isa::avx512_vnni>;
  const auto propose = [](const ScaledProblem& problem, const Machine& machine,
                          Proposals<Scaled>& out) -> Refusal {
    if (const Refusal why = refuse_int8<Isa::avx512_vnni>(problem, machine)) return why;
    const Problem same = forward_of(problem);
    out.add({{},
             cpu::predict_panel_us(same, machine.rates, P::peak(machine.rates), P::kCosts),
             cpu::PanelMemory(P::kOps, same).bytes});
    return {};
  };
  const auto launch = [](const MatmulArgs& args, const Schedule&, const Executor& executor) {
    cpu::run_panel(P::kOps, args, executor);
    return 0;
  };
  return {{name, Placement::cpu, propose, launch}, Isa::avx512_vnni};
}

Kernel tile_row(const char* name) {
  const auto propose = [](const Problem& problem, const Machine& machine, Proposals<Linear>& out) -> Refusal {
    if (const Refusal why = refuse_panel<Isa::amx>(problem, machine)) return why;
    out.add({{},
             cpu::predict_tile_us(problem, machine.rates.bf16_amx),
             problem.direction == Direction::dw ? cpu::tile_dw_workspace(problem)
                                                : cpu::tile_workspace(problem)});
    return {};
  };
  const auto launch = [](const MatmulArgs& args, const Schedule&, const Executor& executor) {
    args.direction == Direction::dw ? cpu::run_tile_dw(cpu::kAmxTile, args, executor)
                                    : cpu::run_tile(cpu::kAmxTile, args, executor);
    return 0;
  };
  return {{name, Placement::cpu, propose, launch}, Isa::amx};
}

ScaledKernel int8_tile_row(const char* name) {
  const auto propose = [](const ScaledProblem& problem, const Machine& machine,
                          Proposals<Scaled>& out) -> Refusal {
    if (const Refusal why = refuse_int8<Isa::amx>(problem, machine)) return why;
    const Problem same = forward_of(problem);
    out.add({{}, cpu::predict_tile_us(same, machine.rates.i8_amx), cpu::tile_workspace(same)});
    return {};
  };
  const auto launch = [](const MatmulArgs& args, const Schedule&, const Executor& executor) {
    cpu::run_tile(cpu::kAmxInt8Tile, args, executor);
    return 0;
  };
  return {{name, Placement::cpu, propose, launch}, Isa::amx};
}

template <Isa kIsa>
struct Decode;
template <>
struct Decode<Isa::avx2> {
  static constexpr const cpu::DecodeOps& kOps = cpu::kAvx2Decode;
  static cpu::DecodeCosts costs(bool forward, const plan::MachineRates&) {
    return forward ? cpu::kAvx2ForwardCosts : cpu::kAvx2DxCosts;
  }
};
template <>
struct Decode<Isa::avx512> {
  static constexpr const cpu::DecodeOps& kOps = cpu::kAvx512Decode;
  static cpu::DecodeCosts costs(bool forward, const plan::MachineRates&) {
    return forward ? cpu::kAvx512ForwardCosts : cpu::kAvx512DxCosts;
  }
};
template <>
struct Decode<Isa::avx512_bf16> {
  static constexpr const cpu::DecodeOps& kOps = cpu::kAvx512Bf16Decode;
  static cpu::DecodeCosts costs(bool, const plan::MachineRates& rates) {
    cpu::DecodeCosts costs = cpu::kAvx512Bf16ForwardCosts;
    // Some CPUs multiply pairs of bf16 no faster than FMA multiplies single numbers.
    if (rates.bf16_avx512 > 0) costs.token_element *= 2 * rates.f32_avx512 / rates.bf16_avx512;
    return costs;
  }
};

template <Isa kIsa>
Kernel decode_row(const char* name) {
  const auto propose = [](const Problem& problem, const Machine& machine, Proposals<Linear>& out) -> Refusal {
    if (const Refusal why = refuse_decode<kIsa>(problem, machine)) return why;
    const bool forward = problem.direction == Direction::forward;
    out.add(
        {{}, cpu::predict_decode_us(problem, machine.rates, Decode<kIsa>::costs(forward, machine.rates)), 0});
    return {};
  };
  const auto launch = [](const MatmulArgs& args, const Schedule&, const Executor& executor) {
    cpu::run_decode(Decode<kIsa>::kOps, args, executor);
    return 0;
  };
  return {{name, Placement::cpu, propose, launch}, kIsa};
}

#endif

}  // namespace

std::span<const Kernel> cpu_kernels() {
#if defined(__x86_64__)
  static const Kernel kernels[] = {
      tile_row("amx_tile"),
      panel_row<Isa::avx512_bf16>("avx512bf16_panel"),
      panel_row<Isa::avx512>("avx512_panel"),
      panel_row<Isa::avx2>("avx2_panel"),
      decode_row<Isa::avx512_bf16>("avx512bf16_decode"),
      decode_row<Isa::avx512>("avx512_decode"),
      decode_row<Isa::avx2>("avx2_decode"),
  };
  return kernels;
#else
  return {};
#endif
}

std::span<const ScaledKernel> cpu_scaled_kernels() {
#if defined(__x86_64__)
  static const ScaledKernel kernels[] = {int8_tile_row("amx_int8_tile"), int8_panel_row("avx512vnni_panel")};
  return kernels;
#else
  return {};
#endif
}

}  // namespace sparseloom::kernels
