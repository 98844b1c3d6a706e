// A small attention with its lists, and its answer element by element in fp64.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "core/allocation.h"
#include "sparseloom/attention_ops.h"

namespace sparseloom::testing {

struct AttentionCase {
  block_attention::Problem problem;
  std::vector<float> q, k, v, out, lse, dout, dq, dk, dv;
  std::vector<std::int32_t> counts, indices, key_counts, key_indices;
  std::int64_t q_blocks = 0, kv_blocks = 0;

  AttentionCase(std::int64_t queries, std::int64_t keys, std::int64_t dim, std::int32_t side, bool causal,
                std::int64_t heads = 4, std::int64_t kv_heads = 2) {
    block_attention::Problem& p = problem;
    p.batch = 2, p.heads = heads, p.kv_heads = kv_heads, p.q_tokens = queries, p.kv_tokens = keys;
    p.head_dim = dim, p.q_block = side, p.kv_block = side, p.causal = causal;
    q_blocks = (queries + side - 1) / side, kv_blocks = (keys + side - 1) / side;
    p.capacity = kv_blocks;
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto draw = [&](std::vector<float>& to, std::int64_t count) {
      to.resize(static_cast<std::size_t>(count));
      for (float& x : to) x = normal(random);
    };
    draw(q, p.batch * heads * queries * dim), draw(dout, p.batch * heads * queries * dim);
    draw(k, p.batch * kv_heads * keys * dim), draw(v, p.batch * kv_heads * keys * dim);
    const float poison = std::numeric_limits<float>::quiet_NaN();
    out.assign(q.size(), poison), dq.assign(q.size(), poison);
    dk.assign(k.size(), poison), dv.assign(v.size(), poison);
    lse.assign(static_cast<std::size_t>(p.batch * heads * queries), poison);
    // Lists of each head; the first list of head 0 is empty.
    counts.assign(static_cast<std::size_t>(heads * q_blocks), 0);
    indices.assign(static_cast<std::size_t>(heads * q_blocks * kv_blocks), -1);  // beyond a list: not read
    for (std::int64_t list = 1; list < heads * q_blocks; ++list)
      for (std::int32_t block = 0; block < kv_blocks; ++block)
        if (random() % 3 != 0)
          indices[static_cast<std::size_t>(list * kv_blocks + counts[static_cast<std::size_t>(list)]++)] =
              block;
    key_counts.assign(static_cast<std::size_t>(heads * kv_blocks), -1);
    key_indices.assign(static_cast<std::size_t>(heads * kv_blocks * q_blocks), -1);
  }

  block_attention::Lists of_queries() const {
    return {counts.data(), indices.data(), q_blocks, kv_blocks, 0, q_blocks};
  }
  block_attention::Lists of_keys() const {
    return {key_counts.data(), key_indices.data(), kv_blocks, q_blocks, 0, kv_blocks};
  }
  block_attention::Tensor tensor(const std::vector<float>& data, std::int64_t heads,
                                 std::int64_t tokens) const {
    return {data.data(), heads * tokens * problem.head_dim, tokens * problem.head_dim, problem.head_dim};
  }

  block_attention::Args args() {
    const block_attention::Problem& p = problem;
    block_attention::Args args;
    args.q = tensor(q, p.heads, p.q_tokens), args.out = tensor(out, p.heads, p.q_tokens);
    args.dout = tensor(dout, p.heads, p.q_tokens), args.dq = tensor(dq, p.heads, p.q_tokens);
    args.k = tensor(k, p.kv_heads, p.kv_tokens), args.v = tensor(v, p.kv_heads, p.kv_tokens);
    args.dk = tensor(dk, p.kv_heads, p.kv_tokens), args.dv = tensor(dv, p.kv_heads, p.kv_tokens);
    args.lse = lse.data();
    args.scale = 0.125f;
    args.of_queries = of_queries(), args.of_keys = of_keys();
    return args;
  }

  bool kept(std::int64_t head, std::int64_t query, std::int64_t key) const {
    if (problem.causal && key > query + problem.kv_tokens - problem.q_tokens) return false;
    const std::int64_t list = head * q_blocks + query / problem.q_block;
    for (std::int32_t n = 0; n < counts[static_cast<std::size_t>(list)]; ++n)
      if (indices[static_cast<std::size_t>(list * kv_blocks + n)] == key / problem.kv_block) return true;
    return false;
  }

  void transpose(const Executor& executor) {
    transpose_lists(of_queries(), problem.heads, kv_blocks, key_counts.data(), key_indices.data(), executor);
  }
  void forward(const Executor& executor, const std::string& kernel = {}) {
    problem.direction = block_attention::Direction::forward;
    attention(*plan_attention(problem, executor, kernel), args(), {}, executor);
  }
  void backward(const Executor& executor, const std::string& kernel = {}) {
    problem.direction = block_attention::Direction::backward;
    const auto plan = plan_attention(problem, executor, kernel);
    Workspace workspace;
    attention_gradient(*plan, args(), workspace.at_least(plan->workspace_bytes), executor);
  }
};

/// out, lse, dq, dk and dv of a case.
struct AttentionAnswer {
  std::vector<double> out, lse, dq, dk, dv;

  explicit AttentionAnswer(const AttentionCase& c)
      : out(c.q.size(), 0), lse(c.lse.size()), dq(c.q.size(), 0), dk(c.k.size(), 0), dv(c.v.size(), 0) {
    const block_attention::Problem& p = c.problem;
    const auto d = static_cast<std::size_t>(p.head_dim);
    std::vector<double> share(static_cast<std::size_t>(p.kv_tokens));
    for (std::int64_t row = 0; row < p.batch * p.heads * p.q_tokens; ++row) {
      const std::int64_t query = row % p.q_tokens, head = row / p.q_tokens % p.heads,
                         batch = row / p.q_tokens / p.heads;
      const std::size_t at = static_cast<std::size_t>(row) * d;
      const std::size_t keys =
          static_cast<std::size_t>((batch * p.kv_heads + head / (p.heads / p.kv_heads)) * p.kv_tokens) * d;
      const auto dot = [&](const std::vector<float>& a, const std::vector<float>& b, std::size_t key) {
        double sum = 0;
        for (std::size_t i = 0; i < d; ++i) sum += double{a[at + i]} * b[keys + key * d + i];
        return sum;
      };
      double total = 0, shift = 0;
      for (std::size_t key = 0; key < share.size(); ++key) {
        const bool kept = c.kept(head, query, static_cast<std::int64_t>(key));
        total += share[key] = kept ? std::exp(0.125 * dot(c.q, c.k, key)) : 0;
      }
      lse[static_cast<std::size_t>(row)] = std::log(total);
      for (double& s : share) s = total > 0 ? s / total : 0;
      for (std::size_t key = 0; key < share.size(); ++key)
        for (std::size_t i = 0; i < d; ++i) out[at + i] += share[key] * c.v[keys + key * d + i];
      for (std::size_t i = 0; i < d; ++i) shift += out[at + i] * c.dout[at + i];
      for (std::size_t key = 0; key < share.size(); ++key) {
        const double ds = 0.125 * share[key] * (dot(c.dout, c.v, key) - shift);
        for (std::size_t i = 0; i < d; ++i) {
          dq[at + i] += ds * c.k[keys + key * d + i];
          dk[keys + key * d + i] += ds * c.q[at + i];
          dv[keys + key * d + i] += share[key] * c.dout[at + i];
        }
      }
    }
  }
};

}  // namespace sparseloom::testing
