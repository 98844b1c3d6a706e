// The verb of sparseloom/block_attention.h: its key and its text.
#include "sparseloom/block_attention.h"

namespace sparseloom::block_attention {
namespace {

std::uint64_t word(std::int64_t number) { return static_cast<std::uint64_t>(number); }
std::uint64_t pair(std::int64_t high, std::int64_t low) {
  return word(high) << 32 | static_cast<std::uint32_t>(low);
}

}  // namespace

ProblemKey Attention::key(const Problem& p) {
  const std::uint64_t flags = word(p.causal) | word(p.documents) << 1 | word(p.ragged) << 2 |
                              word(p.aligned) << 3 | word(p.lse_gradient) << 4 | word(p.strict) << 5;
  return {word(static_cast<int>(p.direction)) | word(static_cast<int>(p.dtype)) << 8 | flags << 16,
          word(p.batch),
          word(p.heads),
          word(p.kv_heads),
          word(p.q_tokens),
          word(p.kv_tokens),
          word(p.head_dim),
          pair(p.q_block, p.kv_block),
          word(p.capacity),
          pair(p.threads, p.device)};
}

std::string Attention::print(const Problem& p) {
  const auto number = [](std::int64_t n) { return std::to_string(n); };
  std::string text = p.direction == Direction::forward ? "forward " : "backward ";
  text += std::string(name_of(p.dtype)) + " batch=" + number(p.batch) + " heads=" + number(p.heads);
  if (p.kv_heads != p.heads) text += " kv_heads=" + number(p.kv_heads);
  text += " q=" + number(p.q_tokens) + " kv=" + number(p.kv_tokens) + " head_dim=" + number(p.head_dim) +
          " block=" + number(p.q_block) + "x" + number(p.kv_block) + " capacity=" + number(p.capacity);
  if (p.causal) text += " causal";
  if (p.documents) text += " documents";
  if (p.ragged) text += " ragged";
  if (p.lse_gradient) text += " lse_gradient";
  if (!p.aligned) text += " unaligned";
  if (p.device >= 0) return text + " cuda:" + number(p.device);
  return text + " threads=" + number(p.threads);
}

std::string Attention::print(const Schedule& schedule) {
  return schedule.splits > 1 ? "lists in " + std::to_string(schedule.splits) + " parts" : std::string();
}

}  // namespace sparseloom::block_attention
