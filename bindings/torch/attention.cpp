// The operators of attention over kept blocks.
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "attention_call.h"
#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "operands.h"
#include "ops/row_number.h"
#include "plan.h"
#include "registration.h"
#include "scratch.h"
#include "sparseloom/attention_ops.h"

namespace sparseloom::binding {
namespace {

using attention_call::Call, attention_call::Layout, attention_call::Operand, attention_call::Optional;
using block_attention::Args, block_attention::Lists, block_attention::Problem;

/// An uninitialised tensor of x's sizes whose memory has tokens or heads outermost, as x's has; fakes.py has
/// the same rule.
Tensor result_like(const char* op, const Tensor& x, Layout layout) {
  std::vector<std::int64_t> sizes = sizes_of(x);
  if (layout.ragged || x.stride(1) >= x.stride(2)) return new_like(op, x, sizes);
  std::swap(sizes[1], sizes[2]);
  return torch::stable::transpose(new_like(op, x, sizes), 1, 2);
}

Tensor lse_like(const Call& call) {
  const Problem& p = call.problem;
  std::vector<std::int64_t> sizes{p.batch, p.heads, p.q_tokens};
  if (call.layout.ragged) sizes = {p.heads, call.args.all_q_tokens};
  return new_tensor(call.op, sizes, ScalarType::Float, call.device);
}

/// lse, or its gradient, contiguous.
const float* lse_of(const Call& call, const char* name, const Tensor& lse) {
  const Problem& p = call.problem;
  require_device(call.op, name, lse, call.device, "q");
  const std::int64_t expected =
      call.layout.ragged ? p.heads * call.args.all_q_tokens : p.batch * p.heads * p.q_tokens;
  if (lse.scalar_type() != ScalarType::Float || lse.numel() != expected || !lse.is_contiguous())
    core::fail(call.op, std::string(name) + " as contiguous float32 of " + std::to_string(expected),
               shape_of(lse), "pass what block_attention returned");
  return static_cast<const float*>(lse.const_data_ptr());
}

std::tuple<Tensor, Tensor> forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& counts,
                                   const Tensor& indices, std::int64_t q_block, std::int64_t kv_block,
                                   bool causal, double scale, Optional /*key_counts*/,
                                   Optional /*key_indices*/, Optional q_starts, Optional kv_starts,
                                   std::int64_t max_q, std::int64_t max_kv, Optional q_documents,
                                   Optional kv_documents, std::int64_t row, bool strict) {
  constexpr const char* op = "attention";
  Call call(op, q, k, v, q_starts, kv_starts, max_q, max_kv);
  const Operand queries(q, call.layout), keys(k, call.layout), values(v, call.layout);
  call.documents(q_documents, kv_documents);
  Problem& p = call.problem;
  p.q_block = static_cast<std::int32_t>(q_block), p.kv_block = static_cast<std::int32_t>(kv_block);
  p.causal = causal, p.strict = strict;
  p.aligned = queries.aligned && keys.aligned && values.aligned;
  Args& args = call.args;
  args.of_queries = call.lists("queries", counts, indices);
  p.capacity = args.of_queries.capacity;
  args.q = queries.view, args.k = keys.view, args.v = values.view;
  args.scale = static_cast<float>(scale);
  const Executor executor = torch_executor(call.device);
  const auto plan = plan_attention(p, executor, ops::row_name(op, row));
  const Tensor out = result_like(op, q, call.layout), lse = lse_like(call);
  args.out = Operand(out, call.layout).view;
  args.lse = static_cast<float*>(lse.mutable_data_ptr());
  const Scratch workspace(op, plan->workspace_bytes, call.device);
  attention(*plan, args, workspace.span(), executor);
  return {out, lse};
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& dout, Optional dlse, const Tensor& q,
                                            const Tensor& k, const Tensor& v, const Tensor& out,
                                            const Tensor& lse, const Tensor& counts, const Tensor& indices,
                                            const Tensor& key_counts, const Tensor& key_indices,
                                            std::int64_t q_block, std::int64_t kv_block, bool causal,
                                            double scale, Optional q_starts, Optional kv_starts,
                                            std::int64_t max_q, std::int64_t max_kv, Optional q_documents,
                                            Optional kv_documents, std::int64_t row, bool strict) {
  constexpr const char* op = "attention_gradient";
  Call call(op, q, k, v, q_starts, kv_starts, max_q, max_kv);
  for (const auto& [tensor, name] : {std::pair{&dout, "dout"}, {&out, "out"}}) {
    require_device(op, name, *tensor, call.device, "q");
    require_same_dtype(op, call.problem.dtype, name, *tensor);
    if (sizes_of(*tensor) != sizes_of(q))
      core::fail(op, std::string(name) + " of q's shape " + shape_of(q), shape_of(*tensor),
                 "pass what block_attention returned, and its gradient");
  }
  const Operand queries(q, call.layout), keys(k, call.layout), values(v, call.layout), outs(out, call.layout),
      douts(dout, call.layout);
  call.documents(q_documents, kv_documents);
  Problem& p = call.problem;
  p.direction = block_attention::Direction::backward;
  p.q_block = static_cast<std::int32_t>(q_block), p.kv_block = static_cast<std::int32_t>(kv_block);
  p.causal = causal, p.strict = strict, p.lse_gradient = dlse.has_value();
  p.aligned = queries.aligned && keys.aligned && values.aligned && outs.aligned && douts.aligned;
  Args& args = call.args;
  args.of_queries = call.lists("queries", counts, indices);
  args.of_keys = call.lists("keys", key_counts, key_indices);
  p.capacity = args.of_queries.capacity;
  args.q = queries.view, args.k = keys.view, args.v = values.view;
  args.out = outs.view, args.dout = douts.view;
  args.lse = const_cast<float*>(lse_of(call, "lse", lse));
  if (dlse) args.dlse = lse_of(call, "dlse", *dlse);
  args.scale = static_cast<float>(scale);
  const Executor executor = torch_executor(call.device);
  const auto plan = plan_attention(p, executor, ops::row_name(op, row));
  const Tensor dq = result_like(op, q, call.layout), dk = result_like(op, k, call.layout),
               dv = result_like(op, v, call.layout);
  args.dq = Operand(dq, call.layout).view;
  args.dk = Operand(dk, call.layout).view;
  args.dv = Operand(dv, call.layout).view;
  const Scratch workspace(op, plan->workspace_bytes, call.device);
  attention_gradient(*plan, args, workspace.span(), executor);
  return {dq, dk, dv};
}

std::tuple<Tensor, Tensor> transpose(const Tensor& counts, const Tensor& indices, std::int64_t lists) {
  constexpr const char* op = "attention_transpose";
  const int device = device_of(op, "counts", counts);
  require_device(op, "indices", indices, device, "counts");
  bool fits = counts.dim() == 3 && indices.dim() == 4 && lists >= 0;
  for (int i = 0; fits && i < 3; ++i) fits = counts.size(i) == indices.size(i);
  for (const Tensor* tensor : {&counts, &indices})
    fits = fits && tensor->scalar_type() == ScalarType::Int && tensor->is_contiguous();
  if (!fits)
    core::fail(op, "contiguous int32 counts [batch, heads, lists] and indices of one dimension more",
               shape_of(counts) + " and " + shape_of(indices), "make them with sparseloom.AttentionPattern");
  Lists of_queries;
  of_queries.counts = static_cast<const std::int32_t*>(counts.const_data_ptr());
  of_queries.indices = static_cast<const std::int32_t*>(indices.const_data_ptr());
  of_queries.lists = counts.size(2), of_queries.capacity = indices.size(3);
  const std::int64_t batch = counts.size(0), heads = counts.size(1);
  const Tensor to_counts = new_tensor(op, {batch, heads, lists}, ScalarType::Int, device),
               to_indices = new_tensor(op, {batch, heads, lists, counts.size(2)}, ScalarType::Int, device);
  transpose_lists(of_queries, batch * heads, lists, static_cast<std::int32_t*>(to_counts.mutable_data_ptr()),
                  static_cast<std::int32_t*>(to_indices.mutable_data_ptr()), torch_executor(device));
  return {to_counts, to_indices};
}

std::tuple<Tensor, Tensor> lists(const Tensor& map) {
  constexpr const char* op = "attention_lists";
  const int device = device_of(op, "map", map);
  if (map.dim() != 4 || (map.scalar_type() != ScalarType::Bool && map.scalar_type() != ScalarType::Byte))
    core::fail(op, "a map [batch, heads, q blocks, kv blocks] of bool or uint8", shape_of(map),
               "see sparseloom.AttentionPattern.from_map");
  block_attention::BlockMap blocks{static_cast<const std::uint8_t*>(map.const_data_ptr()),
                                   map.size(0),
                                   map.size(1),
                                   map.size(2),
                                   map.size(3),
                                   {}};
  for (int i = 0; i < 4; ++i) blocks.strides[i] = map.stride(i);
  const Tensor counts = new_tensor(op, {map.size(0), map.size(1), map.size(2)}, ScalarType::Int, device),
               indices = new_tensor(op, sizes_of(map), ScalarType::Int, device);
  lists_of_map(blocks, static_cast<std::int32_t*>(counts.mutable_data_ptr()),
               static_cast<std::int32_t*>(indices.mutable_data_ptr()), torch_executor(device));
  return {counts, indices};
}

/// Directions of a plan: forward, and dx for backward.
std::string plan(const PlanCall& call) {
  call.require_sizes(11,
                     "batch, heads, kv_heads, q_tokens, kv_tokens, head_dim, q_block, kv_block, capacity, "
                     "causal, documents");
  const Numbers& s = call.sizes;
  Problem p;
  p.direction = call.direction == Direction::forward ? block_attention::Direction::forward
                                                     : block_attention::Direction::backward;
  p.dtype = call.dtype;
  p.batch = s[0], p.heads = s[1], p.kv_heads = s[2], p.q_tokens = s[3], p.kv_tokens = s[4], p.head_dim = s[5];
  p.q_block = static_cast<std::int32_t>(s[6]), p.kv_block = static_cast<std::int32_t>(s[7]);
  p.capacity = s[8], p.causal = s[9] != 0, p.documents = s[10] != 0;
  p.strict = call.strict, p.aligned = call.aligned;
  const auto chosen = plan_attention(p, call.executor(), call.row);
  return json_of(*chosen, std::nullopt, chosen->describe());
}

const FamilyPlan kPlan("block_attention", plan, plan);

}  // namespace
}  // namespace sparseloom::binding

#define SPARSELOOM_ATTENTION(m)                                                  \
  m.impl("block_attention", TORCH_BOX(&sparseloom::binding::forward));           \
  m.impl("block_attention_backward", TORCH_BOX(&sparseloom::binding::backward)); \
  m.impl("block_attention_lists", TORCH_BOX(&sparseloom::binding::lists));       \
  m.impl("block_attention_transpose", TORCH_BOX(&sparseloom::binding::transpose));

SPARSELOOM_TORCH_LIBRARY_IMPL(CPU, m){SPARSELOOM_ATTENTION(m)}

SPARSELOOM_TORCH_LIBRARY_IMPL(CUDA, m) {
  SPARSELOOM_ATTENTION(m)
}
