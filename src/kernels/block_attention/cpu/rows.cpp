// The rows of x86-64: refusals, predicted time and launch.
#include "kernels/block_attention/rows.h"

#include <algorithm>

#include "kernels/block_attention/cpu/tile.h"
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

// The softmax of amx_softmax is by the same vectors; 2.4 to 2.9 on two threads of an Emerald Rapids.
constexpr double kAmxOverAvx512 = 2.5;

// `vector`: queries that the kernel computes at once; few queries take one vector or two, others a tile.
Refusal propose(const Problem& p, const plan::Machine& machine, Isa needed, double rate, double lanes,
                std::int64_t vector, Proposals<Attention>& out) {
  if (!machine.isa.has(needed))
    return {"needs {}, the machine (or SPARSELOOM_ISA) allows {}", runtime::name_of(needed),
            runtime::name_of(machine.isa)};
  if (p.dtype == DType::f64) return {"does not support {}", name_of(p.dtype)};
  if (p.head_dim > cpu::kMostHeadDim)
    return {"supports head sizes up to {}, this one is {}", cpu::kMostHeadDim, p.head_dim};
  // Not measured on this machine: 6 flops a lane and nanosecond.
  const double flops = rate > 0 ? rate : 6e9 * lanes;
  const bool forward = p.direction == Direction::forward;
  const std::int64_t at_once = forward && p.q_tokens <= 2 * vector ? vector : cpu::kTileQueries;
  const double queries = static_cast<double>(core::round_up(p.q_tokens, at_once));
  const double pairs = static_cast<double>(p.batch * p.heads) * queries *
                       static_cast<double>(std::min(p.capacity * p.kv_block, p.kv_tokens));
  const double products = forward ? 2 : 7;
  const double us = products * 2e6 * pairs * static_cast<double>(p.head_dim) / (flops * kShareOfRate);
  // Backward keeps a number of each query.
  const std::int64_t bytes = forward ? 0 : p.batch * p.heads * p.q_tokens * std::int64_t{sizeof(float)};
  out.add({{}, 2 + us / p.threads, static_cast<std::size_t>(bytes)});
  return {};
}

/// Calls `tile` for every tile of the tokens that `lists` cut into blocks.
void for_tiles(const Args& args, const Executor& executor, std::int64_t heads, std::int64_t blocks,
               std::int32_t side, std::int64_t attention::Sequence::*tokens,
               void (*tile)(const cpu::AttentionTile&)) {
  const std::int64_t of_block = side / cpu::kTileQueries, tiles = blocks * of_block;
  const std::int64_t all = args.problem.batch * heads * tiles;
  cpu::Claims claims;
  const std::int64_t threads = std::min<std::int64_t>(executor.num_threads, all);
  // Lists differ in length, so that equal shares of tiles would not be equal work.
  runtime::parallel_tasks(executor, threads, [&](std::int64_t) {
    for (std::int64_t task; (task = claims.take()) < all;) {
      // The last tiles first: with causal order their lists of keys are the longest.
      const std::int64_t number = tiles - 1 - task % tiles, head = task / tiles % heads,
                         batch = task / tiles / heads;
      const std::int64_t first = number * cpu::kTileQueries,
                         rows = std::min(cpu::kTileQueries, attention::Sequence(args, batch).*tokens - first);
      if (rows > 0) tile({args, batch, head, number / of_block, first, rows});
    }
  });
}

int launch(const cpu::AttentionOps& ops, const Args& args, const Executor& executor) {
  ops.runs->add();
  using attention::Sequence;
  const Problem& p = args.problem;
  const bool forward = p.direction == Direction::forward;
  for_tiles(args, executor, p.heads, args.of_queries.lists, p.q_block, &Sequence::queries,
            forward ? ops.forward : ops.queries);
  if (!forward)
    for_tiles(args, executor, p.kv_heads, args.of_keys.lists, p.kv_block, &Sequence::keys, ops.keys);
  return 0;
}

Refusal propose_avx512(const Problem& p, const plan::Machine& machine, Proposals<Attention>& out) {
  return propose(p, machine, Isa::avx512, machine.rates.f32_avx512, 16, 16, out);
}
int launch_avx512(const Args& args, const Attention::Schedule&, const Executor& executor) {
  return launch(*cpu::attention_avx512(args.problem.dtype), args, executor);
}
Refusal propose_amx(const Problem& p, const plan::Machine& machine, Proposals<Attention>& out) {
  if (p.dtype != DType::bf16) return {"supports bf16, this is {}", name_of(p.dtype)};
  if (p.direction != Direction::forward) return {"computes the forward pass alone"};
  return propose(p, machine, Isa::amx, kAmxOverAvx512 * machine.rates.f32_avx512, 16 * kAmxOverAvx512, 32,
                 out);
}
int launch_amx(const Args& args, const Attention::Schedule&, const Executor& executor) {
  return launch(cpu::attention_amx(), args, executor);
}
Refusal propose_avx2(const Problem& p, const plan::Machine& machine, Proposals<Attention>& out) {
  return propose(p, machine, Isa::avx2, machine.rates.f32_avx2, 8, 8, out);
}
int launch_avx2(const Args& args, const Attention::Schedule&, const Executor& executor) {
  return launch(*cpu::attention_avx2(args.problem.dtype), args, executor);
}

#endif

}  // namespace

std::span<const AttentionRow> attention_cpu_rows() {
#if defined(__x86_64__)
  // As in dense attention: the share of such an element is zero, and zero times NaN is NaN.
  static constexpr const char* kCaveat = "multiplies v where causal order or documents cut a kept block";
  static const AttentionRow rows[] = {
      {"amx_softmax", Placement::cpu, propose_amx, launch_amx, kCaveat},
      {"avx512_softmax", Placement::cpu, propose_avx512, launch_avx512, kCaveat},
      {"avx2_softmax", Placement::cpu, propose_avx2, launch_avx2, kCaveat}};
  return rows;
#else
  return {};
#endif
}

}  // namespace sparseloom::kernels
