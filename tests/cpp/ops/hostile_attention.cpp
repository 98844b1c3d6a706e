// Hostile calls of attention over kept blocks, its lists and its maps.
#include <cmath>

#include "ops/hostile_draw.h"
#include "sparseloom/attention_ops.h"

namespace sparseloom::hostile {
namespace {

using block_attention::Args, block_attention::Tensor;

/// [batch, heads, tokens, dim] with gaps between its rows, seldom; it ends with its last element.
Tensor tensor(Draw& draw, Memory& memory, DType dtype, std::int64_t batch, std::int64_t heads,
              std::int64_t tokens, std::int64_t dim) {
  const MatrixView rows = memory.matrix(draw, dtype, batch * heads * tokens, dim);
  Tensor made{rows.data, heads * tokens * rows.stride, tokens * rows.stride, rows.stride};
  if (draw.chance(2)) made.data = nullptr;
  return made;
}

/// The lists of one set of heads or of all, of which an entry may be wrong.
struct BlockLists {
  std::vector<std::int32_t> counts, indices;
  block_attention::Lists view;
  BlockLists(Draw& draw, Memory& memory, std::int64_t batch, std::int64_t heads, std::int64_t lists,
             std::int64_t blocks, std::int64_t capacity, bool documents) {
    const bool of_batches = draw.chance(30), of_heads = draw.chance(50);
    const std::int64_t sets = (of_batches ? batch : 1) * (of_heads ? heads : 1);
    for (std::int64_t list = 0; list < sets * lists; ++list) {
      std::int32_t count = 0;
      for (std::int64_t block = 0; block < blocks && count < capacity; ++block) {
        if (!draw.chance(60)) continue;
        const bool partial = documents && draw.chance(50);
        indices.push_back(static_cast<std::int32_t>(block) |
                          (partial ? block_attention::Lists::kPartial : 0));
        ++count;
      }
      counts.push_back(count);
      indices.resize(static_cast<std::size_t>((list + 1) * capacity), -1);
    }
    if (draw.chance(20)) {
      std::vector<std::int32_t>& of = draw.chance(50) || indices.empty() ? counts : indices;
      if (!of.empty())
        of[static_cast<std::size_t>(draw.below(std::ssize(of)))] = static_cast<std::int32_t>(draw.number());
    }
    view = {memory.array(counts), memory.array(indices), lists, capacity, 0, of_heads ? lists : 0};
    if (of_batches) view.batch_stride = of_heads ? heads * lists : lists;
    if (draw.chance(2)) view.lists += draw.below(3) - 1;
    if (draw.chance(2)) view.capacity -= 1;  // memory has no more
    if (draw.chance(2)) view.counts = nullptr;
  }
};

/// The starts of sequences that together have the last of them, seldom wrong.
std::vector<std::int32_t> starts(Draw& draw, std::int64_t batch, std::int64_t longest) {
  std::vector<std::int32_t> all{0};
  for (std::int64_t b = 0; b < batch; ++b)
    all.push_back(all.back() + static_cast<std::int32_t>(draw.below(longest + 1)));
  return all;
}

void maps(Draw& draw) {
  Memory memory;
  const Executor executor = executor_of(draw);
  const auto size = [&] { return draw.chance(4) ? draw.number() : draw.below(6); };
  block_attention::BlockMap map{nullptr, size(), size(), size(), size(), {}};
  std::int64_t cells = 1;
  for (const std::int64_t each : {map.batches, map.heads, map.rows, map.columns})
    cells = each < 0 || each > 6 ? 0 : cells * each;
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(cells));
  for (std::uint8_t& each : codes)
    each = static_cast<std::uint8_t>(draw.chance(2) ? draw.bits() : draw.below(3));
  map.codes = memory.array(codes);
  if (cells > 0) {
    map.strides[0] = map.heads * map.rows * map.columns, map.strides[1] = map.rows * map.columns;
    map.strides[2] = map.columns, map.strides[3] = 1;
  }
  const std::int64_t lists = cells > 0 ? map.batches * map.heads * map.rows : 0;
  auto* const counts = static_cast<std::int32_t*>(memory.bytes(4 * lists));
  auto* const indices = static_cast<std::int32_t*>(memory.bytes(4 * cells));
  lists_of_map(map, counts, indices, executor);
  if (lists == 0) return;
  const std::int64_t sets = draw.chance(3) ? draw.number() : map.batches * map.heads;
  const std::int64_t keys = draw.chance(3) ? draw.number() : map.columns;
  const bool memory_fits = sets == map.batches * map.heads && keys == map.columns;
  auto* const key_counts = static_cast<std::int32_t*>(memory.bytes(memory_fits ? 4 * sets * keys : 0));
  auto* const key_indices = static_cast<std::int32_t*>(memory.bytes(memory_fits ? 4 * cells : 0));
  if (draw.chance(3)) return transpose_lists({}, draw.number(), draw.number(), nullptr, nullptr, executor);
  transpose_lists({counts, indices, map.rows, map.columns, 0, map.rows}, sets, keys, key_counts, key_indices,
                  executor);
}

/// Requires the rows of out to be means of the rows of v, which lie within -2 and 2.
void expect_means(const Tensor& out, DType dtype, std::int64_t rows, std::int64_t dim) {
  if (dtype != DType::f32) return;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = 0; i < dim; ++i)
      ASSERT_LE(std::fabs(static_cast<const float*>(out.data)[row * out.token + i]), 2.0001f) << row;
}

}  // namespace

void attention(Draw& draw) {
  if (draw.chance(20)) return maps(draw);
  Memory memory;
  const Executor executor = executor_of(draw);
  block_attention::Problem p;
  const auto size = [&](std::int64_t least, std::int64_t most) {
    return draw.chance(2) ? draw.number() : least + draw.below(most - least + 1);
  };
  static constexpr std::int32_t kSides[] = {64, 64, 64, 128}, kWrong[] = {0, -64, 63, 1 << 30};
  p.dtype = draw.dtype(), p.batch = size(0, 2), p.kv_heads = size(1, 2),
  p.heads = draw.chance(2) ? draw.number() : std::clamp<std::int64_t>(p.kv_heads, 0, 2) * (1 + draw.below(2));
  p.q_tokens = size(0, 140), p.kv_tokens = size(0, 140), p.head_dim = size(1, 40);
  p.q_block = draw.chance(2) ? draw.pick(kWrong) : draw.pick(kSides);
  p.kv_block = draw.chance(2) ? draw.pick(kWrong) : p.q_block;
  p.causal = draw.chance(30), p.documents = draw.chance(20), p.ragged = draw.chance(20),
  p.strict = draw.chance(10);
  const bool backward = draw.chance(40);
  if (backward) p.direction = block_attention::Direction::backward, p.lse_gradient = draw.chance(20);
  const auto blocks_of = [](std::int64_t tokens, std::int32_t side) {
    return tokens < 0 || tokens > 140 || side < 1 ? 0 : (tokens + side - 1) / side;
  };
  const std::int64_t q_blocks = blocks_of(p.q_tokens, p.q_block),
                     kv_blocks = blocks_of(p.kv_tokens, p.kv_block);
  p.capacity = size(kv_blocks, kv_blocks + 1);
  static constexpr const char* kKernels[] = {"", "", "", "reference", "avx2", "none"};
  const auto plan = plan_attention(p, executor, draw.pick(kKernels));
  for (const std::int64_t each :
       {p.batch, p.heads, p.kv_heads, p.q_tokens, p.kv_tokens, p.head_dim, p.capacity})
    if (each > 300) return;  // nobody has that memory
  Args args;
  std::int64_t q_batch = p.batch, q_tokens = p.q_tokens, kv_tokens = p.kv_tokens;
  if (p.ragged != draw.chance(3)) {
    std::vector<std::int32_t> of_q = starts(draw, p.batch, p.q_tokens),
                              of_kv = starts(draw, p.batch, p.kv_tokens);
    q_batch = 1, q_tokens = args.all_q_tokens = of_q.back(), kv_tokens = args.all_kv_tokens = of_kv.back();
    if (draw.chance(10))
      of_q[static_cast<std::size_t>(draw.below(std::ssize(of_q)))] = static_cast<std::int32_t>(draw.number());
    if (draw.chance(5)) args.all_kv_tokens += draw.below(3) - 1;
    args.q_starts = memory.array(of_q), args.kv_starts = memory.array(of_kv);
  }
  if (p.documents != draw.chance(3)) {
    std::vector<std::int32_t> of_q(static_cast<std::size_t>(q_batch * q_tokens)),
        of_kv(static_cast<std::size_t>(q_batch * kv_tokens));
    for (std::int32_t& each : of_q) each = static_cast<std::int32_t>(draw.below(2));
    for (std::int32_t& each : of_kv)
      each = static_cast<std::int32_t>(draw.chance(2) ? draw.number() : draw.below(2));
    args.q_documents = memory.array(of_q), args.kv_documents = memory.array(of_kv);
  }
  const auto of_queries = [&] {
    return tensor(draw, memory, p.dtype, q_batch, p.heads, q_tokens, p.head_dim);
  };
  const auto of_keys = [&] {
    return tensor(draw, memory, p.dtype, q_batch, p.kv_heads, kv_tokens, p.head_dim);
  };
  const auto sums = [&] { return static_cast<float*>(memory.bytes(4 * q_batch * p.heads * q_tokens)); };
  args.q = of_queries(), args.out = of_queries(), args.k = of_keys(), args.v = of_keys(), args.lse = sums();
  static constexpr float kScales[] = {0.125f, 0.125f, 1, 0, -1, std::numeric_limits<float>::quiet_NaN()};
  args.scale = draw.pick(kScales);
  const BlockLists queries(draw, memory, p.batch, p.heads, q_blocks, kv_blocks, p.capacity, p.documents);
  args.of_queries = queries.view;
  if (!backward) {
    sparseloom::attention(*plan, args, workspace(draw, memory, plan->workspace_bytes), executor);
    if (args.scale == args.scale) expect_means(args.out, p.dtype, q_batch * p.heads * q_tokens, p.head_dim);
    return;
  }
  const BlockLists keys(draw, memory, p.batch, p.heads, kv_blocks, q_blocks, q_blocks, p.documents);
  args.of_keys = keys.view;
  args.dout = of_queries(), args.dq = of_queries(), args.dk = of_keys(), args.dv = of_keys();
  if (p.lse_gradient != draw.chance(3)) args.dlse = sums();
  attention_gradient(*plan, args, workspace(draw, memory, plan->workspace_bytes), executor);
}

}  // namespace sparseloom::hostile
