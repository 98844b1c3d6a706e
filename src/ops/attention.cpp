// Attention over kept blocks: checks the arguments once at the boundary and launches the plan's kernel.
#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include "core/check.h"
#include "kernels/block_attention/rows.h"
#include "ops/attention_lists.h"
#include "ops/checks.h"
#include "ops/rows.h"
#include "runtime/cuda.h"
#include "sparseloom/attention_ops.h"
#ifdef SPARSELOOM_HAVE_CUDA
#include "kernels/block_attention/sm80/lists.h"
#endif

namespace sparseloom {
namespace {

using block_attention::Args, block_attention::Direction, block_attention::Lists, block_attention::Problem,
    block_attention::Tensor;

constexpr const char* kPlan = "plan";

std::int64_t blocks_of(std::int64_t tokens, std::int32_t side) { return core::ceil_div(tokens, side); }

void check_problem(const Problem& p) {
  const auto text = [](std::int64_t n) { return std::to_string(n); };
  const bool known = p.dtype == DType::f32 || p.dtype == DType::f16 || p.dtype == DType::bf16;
  if (!known && (p.dtype != DType::f64 || p.device >= 0))
    core::fail(kPlan, p.device < 0 ? "attention of f64, f32, f16 or bf16" : "attention of f32, f16 or bf16",
               name_of(p.dtype), "convert q, k and v");
  for (const std::int64_t size : {p.batch, p.q_tokens, p.kv_tokens, p.capacity, p.heads, p.head_dim})
    if (size < 0 || size > std::numeric_limits<std::int32_t>::max())
      core::fail(kPlan, "batch, heads, head size, tokens and capacity of 31 bits", text(size),
                 "cut the call into several");
  if (p.kv_heads < 1 || p.heads < 1 || p.heads % p.kv_heads != 0)
    core::fail(kPlan, "heads of q that are a multiple of those of k",
               text(p.heads) + " and " + text(p.kv_heads), "give each head of k the same number of q's");
  if (p.head_dim < 1) core::fail(kPlan, "a head size of 1 or more", text(p.head_dim), "pass q with channels");
  for (const std::int32_t side : {p.q_block, p.kv_block})
    if (side != 64 && side != 128)
      core::fail(kPlan, "blocks of 64 or 128 queries and keys", text(p.q_block) + " x " + text(p.kv_block),
                 "merge or cut the blocks of the pattern");
  if (p.direction == Direction::forward && p.lse_gradient)
    core::fail(kPlan, "lse_gradient in backward alone", "one in forward", "leave it out");
}

// The product of sizes that a caller counts in; fails where it is no number of entries.
std::int64_t entries_of(const char* op, std::initializer_list<std::int64_t> sizes) {
  std::int64_t count = 1;
  std::string all;
  bool counted = true;
  for (const std::int64_t size : sizes) {
    counted = counted && size >= 0 && !__builtin_mul_overflow(count, size, &count);
    all += (all.empty() ? "" : " x ") + std::to_string(size);
  }
  if (!counted)
    core::fail(op, "sizes of 0 or more whose product is counted in 63 bits", all,
               "pass the sizes of lists that are in memory");
  return count;
}

void check_tensor(const char* op, const char* name, const Tensor& tensor, bool needed) {
  core::require_memory(op, {{name, tensor.data, needed}});
}

void check_lists(const char* op, const char* name, const Lists& lists, std::int64_t expected, bool needed) {
  if (lists.lists != expected)
    core::fail(op, std::to_string(expected) + " lists of " + name, std::to_string(lists.lists),
               "pass one list for each block of " + std::string(name));
  core::require_memory(op, {{"counts", lists.counts, needed && expected > 0},
                            {"indices", lists.indices, needed && expected > 0 && lists.capacity > 0}});
}

// The content of starts, in host memory.
void check_starts(const char* op, const char* name, const std::int32_t* starts, std::int64_t batch,
                  std::int64_t longest, std::int64_t all) {
  bool valid = starts[0] == 0 && starts[batch] == all;
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t length = std::int64_t{starts[b + 1]} - starts[b];
    valid = valid && length >= 0;
    if (valid && length > longest)
      core::fail(op, std::string(name) + " of at most " + std::to_string(longest) + " tokens a sequence",
                 std::to_string(length), "pass the longest sequence as max_q or max_kv");
  }
  if (!valid)
    core::fail(op, std::string(name) + " ascending from 0 to all " + std::to_string(all) + " tokens",
               "others, to " + std::to_string(starts[batch]), "pass the running sum of the lengths");
}

void check_call(const char* op, const AttentionPlan& plan, Direction direction, const Args& args,
                std::span<std::byte> workspace, const Executor& executor) {
  const Problem& p = plan.problem;
  const auto name = [](Direction d) { return d == Direction::forward ? "forward" : "backward"; };
  if (p.direction != direction)
    core::fail(op, std::string("a plan for ") + name(direction), name(p.direction),
               "make one plan for each direction");
  if (p.device != executor.device)
    core::fail(op, "an executor on " + ops::place(p.device) + ", as planned", ops::place(executor.device),
               "make the plan with the executor of the call");
  const std::size_t alignment = p.device >= 0 ? 256 : 64;
  if (!ops::lends(workspace, plan.workspace_bytes, alignment))
    core::fail(
        op,
        std::to_string(plan.workspace_bytes) + " bytes of workspace, aligned to " + std::to_string(alignment),
        std::to_string(workspace.size()) + " bytes", "lend plan.workspace_bytes from an aligned allocation");
  if ((args.q_starts != nullptr || args.kv_starts != nullptr) != p.ragged ||
      (p.ragged && (args.q_starts == nullptr || args.kv_starts == nullptr)))
    core::fail(op, p.ragged ? "starts of q and k, as planned" : "no starts, as planned",
               p.ragged ? "one of them, or none" : "starts", "plan for what the call passes");
  if ((args.q_documents != nullptr && args.kv_documents != nullptr) != p.documents ||
      (args.q_documents != nullptr) != (args.kv_documents != nullptr))
    core::fail(op, p.documents ? "documents of q and k, as planned" : "no documents, as planned",
               p.documents ? "one of them, or none" : "documents", "plan for what the call passes");
  const bool any = p.batch > 0 && p.q_tokens > 0, keys = p.batch > 0 && p.kv_tokens > 0;
  check_tensor(op, "q", args.q, any);
  check_tensor(op, "k", args.k, keys);
  check_tensor(op, "v", args.v, keys);
  check_tensor(op, "out", args.out, any);
  core::require_memory(op, {{"lse", args.lse, any}});
  check_lists(op, "queries", args.of_queries, blocks_of(p.q_tokens, p.q_block), any);
  if (args.of_queries.capacity != p.capacity)
    core::fail(op, "lists of queries with a capacity of " + std::to_string(p.capacity) + ", as planned",
               std::to_string(args.of_queries.capacity), "plan for these lists");
  if (direction == Direction::backward) {
    check_tensor(op, "dout", args.dout, any);
    check_tensor(op, "dq", args.dq, any);
    check_tensor(op, "dk", args.dk, keys);
    check_tensor(op, "dv", args.dv, keys);
    check_lists(op, "keys", args.of_keys, blocks_of(p.kv_tokens, p.kv_block), keys);
    if ((args.dlse != nullptr) != p.lse_gradient)
      core::fail(op, p.lse_gradient ? "a gradient of lse, as planned" : "no gradient of lse, as planned",
                 p.lse_gradient ? "none" : "one", "plan for what the call passes");
  }
  if (p.device >= 0 && !(args.scale > 0))  // the kernels take the maximum before they scale
    core::fail(op, "a positive scale on a GPU", std::to_string(args.scale), "scale q, and pass 1");
  // The starts lie on the device, but the rows' workspace counts on this.
  if (p.device >= 0 && p.ragged)
    for (const auto& [name, all, longest] :
         {std::tuple{"q", args.all_q_tokens, p.q_tokens}, std::tuple{"k", args.all_kv_tokens, p.kv_tokens}})
      if (all > p.batch * longest)
        core::fail(op,
                   "at most " + std::to_string(p.batch * longest) + " tokens of " + name + ": " +
                       std::to_string(p.batch) + " sequences of " + std::to_string(longest),
                   std::to_string(all), "pass a pattern for the longest sequence");
  if (p.device >= 0) return;  // nothing of a device is read
  if (p.ragged) {
    check_starts(op, "q_starts", args.q_starts, p.batch, p.q_tokens, args.all_q_tokens);
    check_starts(op, "kv_starts", args.kv_starts, p.batch, p.kv_tokens, args.all_kv_tokens);
  }
  if (p.batch == 0) return;
  ops::require_valid_lists(op, "queries", args.of_queries, p.batch, p.heads,
                           blocks_of(p.kv_tokens, p.kv_block), p.documents);
  if (direction == Direction::backward)
    ops::require_valid_lists(op, "keys", args.of_keys, p.batch, p.heads, blocks_of(p.q_tokens, p.q_block),
                             p.documents);
}

void run(const char* op, const AttentionPlan& plan, Direction direction, Args& args,
         std::span<std::byte> workspace, const Executor& executor) {
  check_call(op, plan, direction, args, workspace, executor);
  args.problem = plan.problem;
  args.workspace = workspace.data();
  if (plan.problem.batch == 0) return;
  const runtime::CudaDeviceScope scope(executor.device);
  ops::require_queued(op, plan.launch(args, executor), executor, plan.kernel_name);
}

}  // namespace

std::shared_ptr<const AttentionPlan> plan_attention(block_attention::Problem problem,
                                                    const Executor& executor, const std::string& kernel) {
  ops::enter_own_rows();
  problem.device = executor.device;
  problem.threads = executor.device < 0 ? std::max(1, executor.num_threads) : 1;
  if (executor.device < 0) problem.aligned = true;  // always so on the CPU
  check_problem(problem);
  return plan_for<block_attention::Attention>(problem, executor, kernel);
}

void attention(const AttentionPlan& plan, block_attention::Args args, std::span<std::byte> workspace,
               const Executor& executor) {
  run("attention", plan, block_attention::Direction::forward, args, workspace, executor);
}

void attention_gradient(const AttentionPlan& plan, block_attention::Args args, std::span<std::byte> workspace,
                        const Executor& executor) {
  run("attention_gradient", plan, block_attention::Direction::backward, args, workspace, executor);
}

void lists_of_map(const block_attention::BlockMap& map, std::int32_t* counts, std::int32_t* indices,
                  const Executor& executor) {
  constexpr const char* op = "lists_of_map";
  entries_of(op, {map.batches, map.heads, map.rows, map.columns});
  const std::int64_t lists = entries_of(op, {map.batches, map.heads, map.rows});
  core::require_memory(op, {{"codes", map.codes, lists > 0 && map.columns > 0},
                            {"counts", counts, lists > 0},
                            {"indices", indices, lists > 0 && map.columns > 0}});
  if (executor.device < 0) return ops::lists_on_host(map, counts, indices, executor);
  ops::require_gpu(op, executor);
#ifdef SPARSELOOM_HAVE_CUDA
  const runtime::CudaDeviceScope scope(executor.device);
  ops::require_queued(op, kernels::cuda::attention::lists_of_map(map, counts, indices, executor.stream),
                      executor);
#endif
}

void transpose_lists(const block_attention::Lists& of_queries, std::int64_t sets, std::int64_t key_blocks,
                     std::int32_t* counts, std::int32_t* indices, const Executor& executor) {
  constexpr const char* op = "transpose_lists";
  entries_of(op, {sets, of_queries.lists, of_queries.capacity});
  entries_of(op, {sets, key_blocks, of_queries.lists});
  const bool any = sets > 0 && of_queries.lists > 0;
  core::require_memory(op, {{"counts of queries", of_queries.counts, any},
                            {"indices of queries", of_queries.indices, any && of_queries.capacity > 0},
                            {"counts", counts, sets > 0 && key_blocks > 0},
                            {"indices", indices, any && key_blocks > 0}});
  if (executor.device < 0) {
    block_attention::Lists contiguous = of_queries;  // the sets as heads
    contiguous.head_stride = of_queries.lists;
    contiguous.batch_stride = 0;
    ops::require_valid_lists(op, "queries", contiguous, 1, sets, key_blocks, true);
    return ops::transpose_on_host(of_queries, sets, key_blocks, counts, indices);
  }
  ops::require_gpu(op, executor);
#ifdef SPARSELOOM_HAVE_CUDA
  if (sets == 0 || key_blocks == 0) return;
  const runtime::CudaDeviceScope scope(executor.device);
  ops::require_queued(
      op,
      kernels::cuda::attention::transpose_lists(
          {of_queries.counts, of_queries.indices, sets, of_queries.lists, of_queries.capacity},
          {counts, indices, sets, key_blocks, of_queries.lists}, executor.stream),
      executor);
#endif
}

}  // namespace sparseloom
