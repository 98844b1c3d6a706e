// The rows of x86-64: refusals, predicted time and launch.
#include "kernels/block_attention/rows.h"

#include <algorithm>

#include "kernels/block_attention/cpu/forward.h"
#include "kernels/shared/cpu/claims.h"
#include "plan/machine.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom::kernels {
namespace {

#if defined(__x86_64__)

using block_attention::Args, block_attention::Attention, block_attention::Direction, block_attention::Problem;
using runtime::Isa;

// Of the rate of fused multiply-adds in registers, of both products and the softmax; two threads of a Zen 4.
constexpr double kShareOfRate = 0.5;

Refusal propose(const Problem& p, const plan::Machine& machine, Isa needed, double rate, double lanes,
                Proposals<Attention>& out) {
  if (!machine.isa.has(needed))
    return {"needs {}, the machine (or SPARSELOOM_ISA) allows {}", runtime::name_of(needed),
            runtime::name_of(machine.isa)};
  if (p.direction != Direction::forward) return "supports forward only";
  if (p.dtype == DType::f64) return {"does not support {}", name_of(p.dtype)};
  if (p.head_dim > cpu::kMostHeadDim)
    return {"supports head sizes up to {}, this one is {}", cpu::kMostHeadDim, p.head_dim};
  // Not measured on this machine: 6 flops a lane and nanosecond.
  const double flops = rate > 0 ? rate : 6e9 * lanes;
  const double queries =
      static_cast<double>(core::ceil_div(p.q_tokens, cpu::kTileQueries) * cpu::kTileQueries);
  const double pairs = static_cast<double>(p.batch * p.heads) * queries *
                       static_cast<double>(std::min(p.capacity * p.kv_block, p.kv_tokens));
  const double us = 4e6 * pairs * static_cast<double>(p.head_dim) / (flops * kShareOfRate);
  out.add({{}, 2 + us / p.threads, 0});
  return {};
}

int launch(const cpu::AttentionOps& ops, const Args& args, const Executor& executor) {
  ops.runs->add();
  const Problem& p = args.problem;
  const std::int64_t tiles_of_block = p.q_block / cpu::kTileQueries;
  const std::int64_t tiles = args.of_queries.lists * tiles_of_block, all = p.batch * p.heads * tiles;
  cpu::Claims claims;
  const std::int64_t threads = std::min<std::int64_t>(executor.num_threads, all);
  // Lists differ in length, so that equal shares of tiles would not be equal work.
  runtime::parallel_tasks(executor, threads, [&](std::int64_t) {
    for (std::int64_t task; (task = claims.take()) < all;) {
      // The last tiles first: with causal order their lists are the longest.
      const std::int64_t tile = tiles - 1 - task % tiles, head = task / tiles % p.heads,
                         batch = task / tiles / p.heads;
      const attention::Sequence sequence(args, batch);
      const std::int64_t first = tile * cpu::kTileQueries,
                         rows = std::min(cpu::kTileQueries, sequence.queries - first);
      if (rows > 0) ops.forward({args, batch, head, tile / tiles_of_block, first, rows});
    }
  });
  return 0;
}

Refusal propose_avx512(const Problem& p, const plan::Machine& machine, Proposals<Attention>& out) {
  return propose(p, machine, Isa::avx512, machine.rates.f32_avx512, 16, out);
}
int launch_avx512(const Args& args, const Attention::Schedule&, const Executor& executor) {
  return launch(*cpu::attention_avx512(args.problem.dtype), args, executor);
}
Refusal propose_avx2(const Problem& p, const plan::Machine& machine, Proposals<Attention>& out) {
  return propose(p, machine, Isa::avx2, machine.rates.f32_avx2, 8, out);
}
int launch_avx2(const Args& args, const Attention::Schedule&, const Executor& executor) {
  return launch(*cpu::attention_avx2(args.problem.dtype), args, executor);
}

#endif

}  // namespace

std::span<const AttentionRow> attention_cpu_rows() {
#if defined(__x86_64__)
  static const AttentionRow rows[] = {{"avx512_softmax", Placement::cpu, propose_avx512, launch_avx512},
                                      {"avx2_softmax", Placement::cpu, propose_avx2, launch_avx2}};
  return rows;
#else
  return {};
#endif
}

}  // namespace sparseloom::kernels
