// The rows of the CPU: refusals, predicted times and launches.
#include "kernels/tiles_linear/rows.h"

#if defined(__x86_64__)
#include "kernels/bsr_linear/cpu/ops.h"
#include "kernels/tiles_linear/cpu/ops.h"
#endif

namespace sparseloom::kernels {

#if defined(__x86_64__)

namespace {

using runtime::Isa;

constexpr const char* kDxCaveat =
    "the zeros between the stored elements of 2:4 tiles are multiplied too, so a NaN or Inf in dy spreads to "
    "every input of its token";

struct Method {
  const char* name;
  Isa needs;
  Direction direction;
  const cpu::PanelOps& ops;
  const cpu::PanelCosts& costs;  // of blocks
  double plan::MachineRates::*peak;
  double half;  // the time of a 2:4 tile over a dense one's
  const char* caveat = nullptr;
};

constexpr Method kMethods[] = {{"avx2_tiles", Isa::avx2, Direction::forward, cpu::kAvx2Tiles,
                                cpu::kAvx2PanelCosts, &plan::MachineRates::f32_avx2, 0.85},
                               {"avx2_tiles_dx", Isa::avx2, Direction::dx, cpu::kAvx2TilesDx,
                                cpu::kAvx2PanelCosts, &plan::MachineRates::f32_avx2, 1.05, kDxCaveat}};

Problem problem_of(const LinearProblem& p, std::int64_t units) {
  Problem same = cpu::tiles_problem(p.direction, p.dtype, p.m, p.rows, p.cols, units);
  same.threads = p.threads;
  return same;
}

template <std::size_t kMethod>
Row<TilesLinear> row() {
  static constexpr const Method& method = kMethods[kMethod];
  const auto propose = [](const LinearProblem& p, const plan::Machine& machine,
                          Proposals<TilesLinear>& out) -> Refusal {
    if (!machine.isa.has(method.needs))
      return {"needs {}, the machine (or SPARSELOOM_ISA) allows {}", runtime::name_of(method.needs),
              runtime::name_of(machine.isa)};
    if (p.direction != method.direction) return {"supports {} only", name_of(method.direction)};
    if (size_of(p.dtype) > 4 || is_scaled(p.dtype)) return {"does not support {}", name_of(p.dtype)};
    if (p.m == 0 || p.rows == 0 || p.cols == 0) return "has nothing to multiply: a size is 0";
    const TilesCounts counts = counts_of(p);
    const auto as_dense =
        counts.dense + static_cast<std::int64_t>(method.half * static_cast<double>(counts.halves));
    out.add({{},
             cpu::predict_panel_us(problem_of(p, as_dense), machine.rates, machine.rates.*method.peak,
                                   method.costs),
             cpu::tiles_workspace(method.ops, problem_of(p, counts.dense + counts.halves))});
    return {};
  };
  const auto launch = [](const TilesLinear::Args& args, const TilesLinear::Schedule&,
                         const Executor& executor) {
    cpu::run_tiles(method.ops, args.product, args.view, executor);
    return 0;
  };
  return {method.name, Placement::cpu, propose, launch, method.caveat};
}

}  // namespace

std::span<const Row<TilesLinear>> tiles_cpu_rows() {
  static const Row<TilesLinear> rows[] = {row<0>(), row<1>()};
  return rows;
}

#else

std::span<const Row<TilesLinear>> tiles_cpu_rows() { return {}; }

#endif

}  // namespace sparseloom::kernels
