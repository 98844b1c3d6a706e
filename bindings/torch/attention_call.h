// The arguments of the operators of attention as the core sees them, checked.
#pragma once

#include <cstdint>
#include <optional>

#include "convert.h"
#include "sparseloom/block_attention.h"

namespace sparseloom::binding {

namespace attention_call {

using block_attention::Args, block_attention::Lists, block_attention::Problem;
using Optional = std::optional<Tensor>;

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

  Operand(const Tensor& tensor, Layout layout);
};

/// The lists, starts and documents of a call, and its problem.
struct Call {
  const char* op;
  Layout layout;
  int device;
  Problem problem;
  Args args;

  /// Checks q, k and v against each other.
  Call(const char* name, const Tensor& q, const Tensor& k, const Tensor& v, const Optional& q_starts,
       const Optional& kv_starts, std::int64_t max_q, std::int64_t max_kv);

  /// counts [batch or 1, heads or 1, lists] and indices [.., capacity].
  Lists lists(const char* of, const Tensor& counts, const Tensor& indices) const;

  void documents(const Optional& of_q, const Optional& of_kv);

 private:
  const std::int32_t* documents_of(const char* name, const Tensor& documents, std::int64_t tokens,
                                   std::int64_t all) const;
};

}  // namespace attention_call
}  // namespace sparseloom::binding
