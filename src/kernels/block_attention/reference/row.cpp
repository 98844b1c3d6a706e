// The row `reference`: its refusals, predicted time and launch.
#include "kernels/block_attention/reference/tile.h"
#include "kernels/block_attention/rows.h"
#include "kernels/runs.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom::kernels {
namespace {

using namespace attention;
using block_attention::Attention;
using block_attention::Direction;

constinit Runs runs("reference");

Refusal propose(const Problem& p, const plan::Machine&, Proposals<Attention>& out) {
  if (p.strict) return "strict forbids the reference kernel";
  if (p.head_dim > kMostDim) return {"supports head sizes up to {}, this one is {}", kMostDim, p.head_dim};
  // fp32 on one core of a Zen 4: 5 to 8 GFLOP/s; a plan needs no more than that it is the slowest.
  constexpr double kFlopsPerUs = 5e3;
  const double products = p.direction == Direction::forward ? 2 : 7;
  const double pairs = static_cast<double>(p.batch * p.heads) * static_cast<double>(p.q_tokens) *
                       static_cast<double>(p.capacity * p.kv_block);
  out.add({{}, products * 2 * pairs * static_cast<double>(p.head_dim) / kFlopsPerUs / p.threads, 0});
  return {};
}

template <class T>
void run(const Args& args, const Executor& executor) {
  const Problem& p = args.problem;
  const std::int64_t q_blocks = args.of_queries.lists, kv_blocks = args.of_keys.lists;
  runtime::parallel_tasks(executor, p.batch * p.heads * q_blocks, [&](std::int64_t task) {
    const std::int64_t block = task % q_blocks, head = task / q_blocks % p.heads,
                       batch = task / q_blocks / p.heads;
    p.direction == Direction::forward ? forward_block<T>(args, batch, head, block)
                                      : gradient_of_queries<T>(args, batch, head, block);
  });
  if (p.direction == Direction::forward) return;
  runtime::parallel_tasks(executor, p.batch * p.kv_heads * kv_blocks, [&](std::int64_t task) {
    const std::int64_t block = task % kv_blocks, head = task / kv_blocks % p.kv_heads;
    gradient_of_keys<T>(args, task / kv_blocks / p.kv_heads, head, block);
  });
}

int launch(const Args& args, const Attention::Schedule&, const Executor& executor) {
  runs.add();
  switch (args.problem.dtype) {
    case DType::f64: run<double>(args, executor); break;
    case DType::f32: run<float>(args, executor); break;
    case DType::f16: run<core::F16>(args, executor); break;
    default: run<core::Bf16>(args, executor);
  }
  return 0;
}

}  // namespace

AttentionRow attention_reference_row() { return {"reference", Placement::cpu, propose, launch}; }

}  // namespace sparseloom::kernels
