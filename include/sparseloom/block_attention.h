// Attention over kept blocks: out = softmax(scale q k^T) v, where each block of queries reads a list of
// blocks of keys, and its gradients. The verb "block_attention" has a direction: forward or backward.
//
//   q, out, dout, dq   [batch, heads, q_tokens, head_dim]
//   k, v, dk, dv       [batch, kv_heads, kv_tokens, head_dim]; query head h reads head h / (heads / kv_heads)
//   lse                [batch, heads, q_tokens], fp32: the natural logarithm of sum(exp(scale q k^T)) over
//                      the kept keys; -infinity where no key is kept, and then out is zero
//
// FlashAttention (Dao et al. 2022) gives the sums block by block, and the backward from out, dout and lse.
#pragma once

#include <cstdint>
#include <string>

#include "sparseloom/dtype.h"
#include "sparseloom/export.h"
#include "sparseloom/plan.h"
#include "sparseloom/verb.h"

namespace sparseloom::block_attention {

/// A tensor [batch, heads, tokens, head_dim] by its strides in elements; head_dim is contiguous. With
/// sequences of several lengths (Args::q_starts) the tokens of all batches follow each other, and `batch` is
/// not used.
struct Tensor {
  const void* data = nullptr;
  std::int64_t batch = 0, head = 0, token = 0;
};

/// For each block of one side, the blocks of the other side that it meets, in ascending order.
///
///   counts   [batch or 1, heads or 1, lists]
///   indices  [batch or 1, heads or 1, lists, capacity]; of a list the first `counts` are read. An entry is
///            the block's number, plus kPartial if Args::q_documents decide which of its elements are kept
///
/// A stride is 0 where all batches or heads share the lists. Both are in device memory with CUDA, are read by
/// the kernels alone, and may change between the replays of a graph.
struct Lists {
  static constexpr std::int32_t kPartial = 1 << 30;
  const std::int32_t *counts = nullptr, *indices = nullptr;
  std::int64_t lists = 0, capacity = 0;
  std::int64_t batch_stride = 0, head_stride = 0;  // in lists
};

/// A map of blocks, [batches][heads][rows][columns] by its strides in elements: 0 absent, 1 whole, 2 partial.
struct BlockMap {
  const std::uint8_t* codes = nullptr;
  std::int64_t batches = 0, heads = 0, rows = 0, columns = 0;
  std::int64_t strides[4] = {};
};

enum class Direction : std::uint8_t { forward, backward };

/// Everything that the choice of a kernel depends on. The content of lists is no part of it: they lie on the
/// device and change.
struct Problem {
  Direction direction = Direction::forward;
  DType dtype = DType::f32;  // of q, k, v, out and their gradients
  std::int64_t batch = 0, heads = 0, kv_heads = 0;
  std::int64_t q_tokens = 0, kv_tokens = 0;  // of several lengths: the largest
  std::int64_t head_dim = 0;
  std::int32_t q_block = 0, kv_block = 0;                  // 64 or 128
  std::int64_t capacity = 0;                               // of the lists of queries
  bool causal = false, documents = false, ragged = false;  // ragged: sequences of several lengths
  bool aligned = true;                                     // all rows start at multiples of 16 bytes
  bool lse_gradient = false;  // backward alone: the gradient of lse is given, too
  bool strict = false;
  int threads = 1;
  int device = -1;
  friend bool operator==(const Problem&, const Problem&) = default;
};

struct Args {
  Problem problem;  // as planned: sizes, blocks, dtype and flags of the launch
  Tensor q, k, v;
  Tensor out;            // written by forward, read by backward
  float* lse = nullptr;  // [batch, heads, q_tokens]; ragged: [heads, all tokens]
  float scale = 1;       // of q k^T
  // With causal, query i of a sequence of n keys and m queries keeps the keys up to i + n - m: the last query
  // sees all, as in FlashAttention.
  Lists of_queries;  // per block of queries: blocks of keys
  Lists of_keys;     // per block of keys: blocks of queries; backward alone
  // Ragged: sequence b has the tokens [starts[b], starts[b + 1]) of q and of k; int32 [batch + 1] each, or
  // null.
  const std::int32_t *q_starts = nullptr, *kv_starts = nullptr;
  std::int64_t all_q_tokens = 0, all_kv_tokens = 0;  // with starts
  // Documents: in blocks with kPartial a key is kept if its document is the query's. int32 [batch, tokens],
  // or [all tokens] with starts; or null.
  const std::int32_t *q_documents = nullptr, *kv_documents = nullptr;
  Tensor dout, dq, dk, dv;      // backward alone; dq, dk and dv are written
  const float* dlse = nullptr;  // backward alone: the gradient of lse, laid out as lse; or null
  void* workspace = nullptr;
};

/// What a row decides before a launch.
struct Schedule {
  int splits = 1;  // parts of each list that are computed side by side, and merged: for few queries
};

struct Attention {
  static constexpr const char* kName = "block_attention";
  using Problem = block_attention::Problem;
  using Args = block_attention::Args;
  using Schedule = block_attention::Schedule;
  SPARSELOOM_API static ProblemKey key(const Problem& problem);
  SPARSELOOM_API static std::string print(const Problem& problem);
  SPARSELOOM_API static std::string print(const Schedule& schedule);
};

}  // namespace sparseloom::block_attention

namespace sparseloom {
using AttentionPlan = PlanOf<block_attention::Attention>;
}
