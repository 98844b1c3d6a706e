#include "attention_call.h"

#include <string>
#include <utility>

#include "core/check.h"
#include "operands.h"

namespace sparseloom::binding::attention_call {
namespace {
constexpr std::int64_t kAlignment = 16;  // bytes, which TMA needs
}

Operand::Operand(const Tensor& tensor, Layout layout) : owner(tensor) {
  const int last = layout.dims() - 1;
  bool copied = tensor.size(last) > 1 && tensor.stride(last) != 1;
  for (int i = 0; i < last; ++i)  // a tensor map has no stride of 0, which an expanded dimension has
    copied = copied || (tensor.is_cuda() && tensor.size(i) > 1 && tensor.stride(i) == 0);
  if (copied) owner = as_contiguous(tensor);
  view.data = owner.const_data_ptr();
  view.batch = layout.ragged ? 0 : owner.stride(0);
  view.head = owner.stride(layout.head()), view.token = owner.stride(layout.token());
  const auto bytes = static_cast<std::int64_t>(owner.element_size());
  aligned = reinterpret_cast<std::uintptr_t>(view.data) % kAlignment == 0;
  for (int i = 0; i < last; ++i)  // the stride of a dimension of one element is not used
    aligned = aligned && (owner.size(i) <= 1 || owner.stride(i) * bytes % kAlignment == 0);
}

Call::Call(const char* name, const Tensor& q, const Tensor& k, const Tensor& v, const Optional& q_starts,
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

Lists Call::lists(const char* of, const Tensor& counts, const Tensor& indices) const {
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

void Call::documents(const Optional& of_q, const Optional& of_kv) {
  if (of_q.has_value() != of_kv.has_value())
    core::fail(op, "documents of q and of k", "one of them", "pass both, or neither");
  if (!of_q) return;
  problem.documents = true;
  args.q_documents = documents_of("q_documents", *of_q, problem.q_tokens, args.all_q_tokens);
  args.kv_documents = documents_of("kv_documents", *of_kv, problem.kv_tokens, args.all_kv_tokens);
}

const std::int32_t* Call::documents_of(const char* name, const Tensor& documents, std::int64_t tokens,
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

}  // namespace sparseloom::binding::attention_call
