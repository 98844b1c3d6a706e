// The operators of attention over kept blocks.
#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "operands.h"
#include "ops/row_number.h"
#include "plan.h"
#include "scratch.h"
#include "sparseloom/attention_ops.h"

namespace sparseloom::binding {
namespace {

using block_attention::Args, block_attention::Lists, block_attention::Problem;
using Optional = std::optional<Tensor>;

constexpr std::int64_t kAlignment = 16;  // bytes, which TMA needs

/// The layout of q, k, v and their gradients: [batch, heads, tokens, head size], or with starts
/// [tokens, heads, head size].
struct Layout {
  bool ragged;
  int dims() const { return ragged ? 3 : 4; }
  int head() const { return 1; }
  int token() const { return ragged ? 0 : 2; }
};

/// An operand, copied if its head size is not contiguous, as the kernels see it.
struct Operand {
  Tensor owner;
  block_attention::Tensor view;
  bool aligned = true;

  Operand(const Tensor& tensor, Layout layout) : owner(tensor) {
    const int last = layout.dims() - 1;
    if (tensor.size(last) > 1 && tensor.stride(last) != 1) owner = as_contiguous(tensor);
    view.data = owner.const_data_ptr();
    view.batch = layout.ragged ? 0 : owner.stride(0);
    view.head = owner.stride(layout.head()), view.token = owner.stride(layout.token());
    const auto bytes = static_cast<std::int64_t>(owner.element_size());
    aligned = reinterpret_cast<std::uintptr_t>(view.data) % kAlignment == 0;
    for (const std::int64_t stride : {view.batch, view.head, view.token})
      aligned = aligned && stride * bytes % kAlignment == 0;
  }
};

/// The lists, starts, documents and options of a call, and its problem.
struct Call {
  const char* op;
  Layout layout;
  int device;
  Problem problem;
  Args args;

  /// Checks q, k and v against each other.
  Call(const char* name, const Tensor& q, const Tensor& k, const Tensor& v, const Optional& q_starts,
       const Optional& kv_starts, std::int64_t max_q, std::int64_t max_kv)
      : op(name), layout{q_starts.has_value()}, device(device_of(name, "q", q)) {
    problem.dtype = dtype_of(op, "q", q);
    if (q_starts.has_value() != kv_starts.has_value())
      core::fail(op, "starts of q and of k", "one of them", "pass both, or neither");
    const char* const shape =
        layout.ragged ? " [tokens, heads, head size]" : " [batch, heads, tokens, head size]";
    for (const auto& [tensor, its] : {std::pair{&q, "q"}, {&k, "k"}, {&v, "v"}}) {
      require_device(op, its, *tensor, device, "q");
      require_same_dtype(op, problem.dtype, its, *tensor);
      if (tensor->dim() != layout.dims())
        core::fail(op, std::string(its) + shape, shape_of(*tensor), "reshape it");
    }
    problem.heads = q.size(layout.head()), problem.kv_heads = k.size(layout.head());
    problem.head_dim = q.size(layout.dims() - 1);
    bool fits = k.size(layout.dims() - 1) == problem.head_dim && (layout.ragged || k.size(0) == q.size(0));
    for (int i = 0; i < layout.dims(); ++i) fits = fits && k.size(i) == v.size(i);
    if (!fits)
      core::fail(op, "k and v of one shape, with q's batch and head size",
                 shape_of(q) + ", " + shape_of(k) + " and " + shape_of(v), "pass the keys of these queries");
    if (problem.kv_heads < 1 || problem.heads % problem.kv_heads != 0)
      core::fail(op, "heads of q that are a multiple of those of k",
                 std::to_string(problem.heads) + " and " + std::to_string(problem.kv_heads),
                 "give each head of k the same number of q's");
    if (layout.ragged) {
      problem.ragged = true;
      problem.batch = q_starts->numel() - 1;
      args.q_starts = indices_of(op, "q_starts", *q_starts, -1, device, "q");
      args.kv_starts = indices_of(op, "kv_starts", *kv_starts, problem.batch + 1, device, "q");
      if (problem.batch < 0)
        core::fail(op, "q_starts [batch + 1]", shape_of(*q_starts), "pass the running sum of the lengths");
      problem.q_tokens = max_q, problem.kv_tokens = max_kv;
      args.all_q_tokens = q.size(0), args.all_kv_tokens = k.size(0);
    } else {
      problem.batch = q.size(0), problem.q_tokens = q.size(2), problem.kv_tokens = k.size(2);
    }
  }

  /// counts [batch or 1, heads or 1, lists] and indices [.., capacity].
  Lists lists(const char* of, const Tensor& counts, const Tensor& indices) const {
    for (const Tensor* tensor : {&counts, &indices}) {
      require_device(op, of, *tensor, device, "q");
      if (tensor->scalar_type() != ScalarType::Int || !tensor->is_contiguous())
        core::fail(op, "lists of " + std::string(of) + " as contiguous int32", shape_of(*tensor),
                   "make them with sparseloom.AttentionPattern");
    }
    bool fits = counts.dim() == 3 && indices.dim() == 4;
    for (int i = 0; fits && i < 3; ++i) fits = counts.size(i) == indices.size(i);
    fits = fits && (counts.size(0) == 1 || counts.size(0) == problem.batch) &&
           (counts.size(1) == 1 || counts.size(1) == problem.heads);
    if (!fits)
      core::fail(op,
                 "lists of " + std::string(of) + ": counts [" + std::to_string(problem.batch) + " or 1, " +
                     std::to_string(problem.heads) + " or 1, blocks] and indices of one dimension more",
                 shape_of(counts) + " and " + shape_of(indices), "pass lists of this batch and these heads");
    Lists lists;
    lists.counts = static_cast<const std::int32_t*>(counts.const_data_ptr());
    lists.indices = static_cast<const std::int32_t*>(indices.const_data_ptr());
    lists.lists = counts.size(2), lists.capacity = indices.size(3);
    lists.head_stride = counts.size(1) == 1 ? 0 : lists.lists;
    lists.batch_stride = counts.size(0) == 1 ? 0 : counts.size(1) * lists.lists;
    return lists;
  }

  void documents(const Optional& of_q, const Optional& of_kv) {
    if (of_q.has_value() != of_kv.has_value())
      core::fail(op, "documents of q and of k", "one of them", "pass both, or neither");
    if (!of_q) return;
    problem.documents = true;
    args.q_documents = documents_of("q_documents", *of_q, problem.q_tokens, args.all_q_tokens);
    args.kv_documents = documents_of("kv_documents", *of_kv, problem.kv_tokens, args.all_kv_tokens);
  }

  const std::int32_t* documents_of(const char* name, const Tensor& documents, std::int64_t tokens,
                                   std::int64_t all) const {
    require_device(op, name, documents, device, "q");
    const bool fits = layout.ragged ? documents.dim() == 1 && documents.size(0) == all
                                    : documents.dim() == 2 && documents.size(0) == problem.batch &&
                                          documents.size(1) == tokens;
    if (!fits || documents.scalar_type() != ScalarType::Int || !documents.is_contiguous())
      core::fail(
          op,
          std::string(name) + " as contiguous int32 " +
              (layout.ragged ? "[" + std::to_string(all) + "]"
                             : "[" + std::to_string(problem.batch) + ", " + std::to_string(tokens) + "]"),
          shape_of(documents), "pass a number per token");
    return static_cast<const std::int32_t*>(documents.const_data_ptr());
  }
};

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

std::tuple<Tensor, Tensor, Tensor> backward(
    const Tensor& dout, Optional dlse, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
    const Tensor& lse, const Tensor& counts, const Tensor& indices, const Tensor& key_counts,
    const Tensor& key_indices, std::int64_t q_block, std::int64_t kv_block, bool causal, double scale,
    Optional q_starts, Optional kv_starts, std::int64_t max_q, std::int64_t max_kv, Optional q_documents,
    Optional kv_documents, bool deterministic, std::int64_t row, bool strict) {
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
  p.causal = causal, p.strict = strict, p.deterministic = deterministic, p.lse_gradient = dlse.has_value();
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
  m.impl("block_attention_transpose", TORCH_BOX(&sparseloom::binding::transpose));

STABLE_TORCH_LIBRARY_IMPL(sparseloom, CPU, m){SPARSELOOM_ATTENTION(m)}

STABLE_TORCH_LIBRARY_IMPL(sparseloom, CUDA, m) {
  SPARSELOOM_ATTENTION(m)
}
