// The rows of the kernels: refusals, predicted times and launches.
#include "kernels/semi24_linear/rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/bitmap_linear/rows.h"
#include "kernels/semi24_linear/cpu/bits.h"
#include "kernels/semi24_linear/cpu/ops.h"
#include "plan/machine.h"

namespace sparseloom::kernels {
namespace {

#if defined(__x86_64__)

using plan::MachineRates;
using runtime::Isa;

constexpr const char* kExpandCaveat =
    "the zeros between stored elements are multiplied too, so a NaN or Inf in x spreads to every output of "
    "its "
    "token";
constexpr const char* kSpreadCaveat =
    "the zeros between stored elements are multiplied too, so a NaN or Inf in dy spreads to every input of "
    "its "
    "token";
// x as select packs it has 4 bytes per token and column, 15 MB at this bound and 14336 columns.
constexpr std::int64_t kSelectMostTokens = 256;
// x as gather packs it, and dY as columns packs it, have 4 bytes per token and column, 59 MB at this bound
// and 14336 columns.
constexpr std::int64_t kGatherMostTokens = 1024;

/// Cycles in which a core does 32 fp32 flops by AVX2 FMA. Fitted to one thread with W in cache, expand on a
/// Zen 4, the others on a Zen 3; the log has the measurements.
struct Costs {
  double pass;       // per stored element and pass of kPassTokens
  double token;      // per stored element and token
  double packed;     // per number of x (dX: of dY) that is packed
  double out = 4;    // per number of the result
  double panel = 0;  // gather, columns: per stored element and panel of tokens
  double once = 0;   // columns, spread: per stored element
};

/// The kernel of one instruction set: one of the functions is not null.
struct Method {
  const char* name;
  Isa needs;
  Costs costs;
  Direction direction;
  std::int64_t most_tokens;
  const cpu::ExpandOps* (*expand)(DType) = nullptr;
  const cpu::PackedOps* (*packed)(DType) = nullptr;
  const char* caveat = nullptr;

  bool has(DType dtype) const {
    return expand != nullptr ? expand(dtype) != nullptr : packed(dtype) != nullptr;
  }
};

constexpr Direction kForward = Direction::forward, kDx = Direction::dx;
constexpr Isa kBf16 = Isa::avx512_bf16 | Isa::avx512_vbmi2;
constexpr Method kMethods[] = {
    {"avx512bf16_expand",
     kBf16,
     {0.17, 0.07, 0.1},
     kForward,
     cpu::kExpandTokens,
     cpu::expand_avx512_bf16,
     nullptr,
     kExpandCaveat},
    {"avx512_expand",
     Isa::avx512,
     {0.3, 0.13, 0.2},
     kForward,
     cpu::kExpandTokens,
     cpu::expand_avx512,
     nullptr,
     kExpandCaveat},
    {.name = "avx2_select",
     .needs = Isa::avx2,
     .costs = {0.33, 0.134, 0.5},
     .direction = kForward,
     .most_tokens = kSelectMostTokens,
     .packed = cpu::select_avx2},
    {.name = "avx2_gather",
     .needs = Isa::avx2,
     .costs = {0.8, 0, 0.5, 4, 0.9},
     .direction = kForward,
     .most_tokens = kGatherMostTokens,
     .packed = cpu::gather_avx2},
    {.name = "avx2_strips",
     .needs = Isa::avx2,
     .costs = {0.5, 0.26, 0.5, 1},
     .direction = kDx,
     .most_tokens = cpu::kTokenLanes,
     .packed = cpu::strips_avx2,
     .caveat = kSpreadCaveat},
    {.name = "avx2_columns",
     .needs = Isa::avx2,
     .costs = {0.73, 0, 0.5, 4, 1.8, 2.8},
     .direction = kDx,
     .most_tokens = 4096,
     .packed = cpu::columns_avx2},
    {.name = "avx2_spread",
     .needs = Isa::avx2,
     .costs = {1.35, 0, 0.5, 4, 0, 1.1},
     .direction = kDx,
     .most_tokens = cpu::kSpreadMostTokens,
     .packed = cpu::spread_avx2,
     .caveat = kSpreadCaveat},
};

Refusal refuse(const Method& method, const LinearProblem& p, const plan::Machine& machine) {
  if (!machine.isa.has(method.needs)) {
    if (machine.isa.has(Isa::avx512_bf16)) return "needs avx512_vbmi2 beside avx512_bf16";
    return {"needs {}, the machine (or SPARSELOOM_ISA) allows {}", runtime::name_of(method.needs),
            runtime::name_of(machine.isa)};
  }
  if (!method.has(p.dtype)) return {"does not support {}", name_of(p.dtype)};
  if (p.direction != method.direction) return {"supports {} only", name_of(method.direction)};
  if (p.m > method.most_tokens)
    return {"supports at most {} tokens, the call has {}", method.most_tokens, p.m};
  return {};
}

double predict_us(const Method& method, const LinearProblem& p, const MachineRates& rates) {
  constexpr double kFlopsPerCycle = 32, kMemoryShareOfCopy = 0.15, kCallUs = 0.5, kForkUs = 4;
  constexpr double kPassTokens = 8, kTaskElements = 50e3, kResidentBytes = 16e6;
  const double cycle_us = 1e6 * kFlopsPerCycle / (rates.f32_avx2 > 0 ? rates.f32_avx2 : 100e9);
  const Costs& c = method.costs;
  const double m = static_cast<double>(p.m), stored = static_cast<double>(p.stored);
  double packed = static_cast<double>(p.cols), out = static_cast<double>(p.rows);
  if (p.direction == Direction::dx) std::swap(packed, out);
  const double panels = c.panel > 0 ? static_cast<double>(cpu::Panels(p.m).panels) : 0;
  const double compute =
      cycle_us * (stored * (std::ceil(m / kPassTokens) * c.pass + m * c.token + panels * c.panel + c.once) +
                  m * (c.packed * packed + c.out * out));
  // The positions of two elements take four bits.
  const double bytes = stored * (static_cast<double>(size_of(p.dtype)) + 0.25);
  const double memory = kMemoryShareOfCopy * (rates.copy_bytes > 0 ? rates.copy_bytes : 50e9);
  const double us = std::max(compute, 1e6 * std::max(0.0, bytes - kResidentBytes) / memory);
  const double tasks = std::clamp(stored / kTaskElements, 1.0, std::max(1.0, static_cast<double>(p.threads)));
  return kCallUs + us / tasks + (tasks > 1 ? kForkUs : 0);
}

template <std::size_t kMethod>
Semi24Row row() {
  static constexpr const Method& method = kMethods[kMethod];
  const auto propose = [](const LinearProblem& p, const plan::Machine& machine,
                          Proposals<Semi24Linear>& out) -> Refusal {
    if (const Refusal why = refuse(method, p, machine)) return why;
    out.add({{},
             predict_us(method, p, machine.rates),
             method.expand != nullptr ? cpu::expand_workspace(*method.expand(p.dtype), p.m, p.cols)
                                      : cpu::packed_workspace(*method.packed(p.dtype), p.m, p.rows, p.cols)});
    return {};
  };
  const auto launch = [](const Semi24Linear::Args& args, const Semi24Linear::Schedule&,
                         const Executor& executor) {
    const DType dtype = args.product.dtype;
    if (method.expand != nullptr)
      cpu::run_expand(*method.expand(dtype), args.product, args.view, executor);
    else
      cpu::run_packed(*method.packed(dtype), args.product, args.view, executor);
    return 0;
  };
  return {method.name, Placement::cpu, propose, launch, method.caveat};
}

/// Tokens that strips multiplies in one pass over W.
constexpr std::int64_t kStripsTokens = 4;

Semi24View sizes_of(const LinearProblem& p) {
  Semi24View w;
  w.rows = p.rows, w.cols = p.cols;
  return w;
}

/// A kernel of bitmaps, for which each call writes the positions as bits.
template <std::size_t kKernel>
Semi24Row row_of_bits() {
  static const BitmapKernel kernel = bitmap_kernels()[kKernel];
  const auto propose = [](const LinearProblem& p, const plan::Machine& machine,
                          Proposals<Semi24Linear>& out) -> Refusal {
    if (p.direction == Direction::dw) return "supports forward and dx only";
    if (const Refusal why = kernel.refuse(p, machine)) return why;
    // expand and strips read the positions as they are, and open one region: strips takes half the time for
    // one token where W is 16 MB and more, 1.1 times where it is 1 MB (Zen 5).
    const std::int64_t least = p.direction == kForward ? cpu::kExpandTokens : kStripsTokens;
    if (p.m <= least) return {"takes more than {} tokens, the call has {}", least, p.m};
    if (p.stored > std::numeric_limits<std::int32_t>::max()) return "counts stored elements by 32 bits";
    // Counted from the instructions for sixteen bytes, not measured.
    constexpr double kCyclesPerByte = 0.25, kCyclesPerUs = 3.7e3, kRegionUs = 5;
    const double bytes = static_cast<double>(p.rows * sizes_of(p).position_bytes());
    const double us = kRegionUs + bytes * kCyclesPerByte / kCyclesPerUs / std::max(1, p.threads);
    out.add({{}, us + kernel.predict_us(p, machine), cpu::bits_workspace(sizes_of(p)) + kernel.workspace(p)});
    return {};
  };
  const auto launch = [](const Semi24Linear::Args& args, const Semi24Linear::Schedule&,
                         const Executor& executor) {
    MatmulArgs product = args.product;
    const BitmapView bits = cpu::bitmap_of(args.view, product.workspace, executor);
    product.workspace += cpu::bits_workspace(args.view);
    kernel.run(product, bits, executor);
    return 0;
  };
  return {kernel.name, Placement::cpu, propose, launch};
}

#endif

}  // namespace

std::span<const Semi24Row> semi24_cpu_rows() {
#if defined(__x86_64__)
  static const Semi24Row rows[] = {row_of_bits<0>(), row_of_bits<1>(), row<0>(), row<1>(), row<2>(),
                                   row<3>(),         row<4>(),         row<5>(), row<6>()};
  return rows;
#else
  return {};
#endif
}

}  // namespace sparseloom::kernels
