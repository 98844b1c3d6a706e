// The running cost by which CPU threads divide block rows or block columns.
#include "plan/schedule.h"

#include "core/check.h"

namespace sparseloom::plan {
namespace {

// Writing an output tile costs about as much as this many reduction steps: transposing and storing 8 outputs
// x 48 tokens takes about 200 cycles, and a step is 24 FMAs, which take 12 to 24. The term also keeps empty
// rows from counting as free.
constexpr std::int64_t kStoreSteps = 12;

}  // namespace

std::vector<std::int64_t> cost_prefix(Direction direction, const IndexView& index) {
  if (direction == Direction::dw) return {};
  const bool forward = direction == Direction::forward;
  const std::int64_t block_rows = forward ? index.block_rows() : index.block_cols();
  const std::int64_t steps = forward ? index.block.cols : index.block.rows;
  std::vector<std::int64_t> prefix(block_rows + 1, 0);
  if (forward)
    for (std::int64_t r = 0; r < block_rows; ++r) prefix[r + 1] = index.crow[r + 1] - index.crow[r];
  else
    for (std::int64_t i = 0; i < index.blocks; ++i) ++prefix[index.col[i] + 1];
  for (std::int64_t l = 0; l < block_rows; ++l)
    prefix[l + 1] = prefix[l] + prefix[l + 1] * steps + kStoreSteps;
  return prefix;
}

namespace {

std::int64_t block_rows_of(const Problem& p) {
  const bool forward = p.direction == Direction::forward;
  return core::ceil_div(forward ? p.rows : p.cols, std::int64_t{forward ? p.block.rows : p.block.cols});
}

std::size_t prefix_bytes(const Problem& p) {
  return static_cast<std::size_t>(block_rows_of(p) + 1) * sizeof(std::int64_t);
}

}  // namespace

std::size_t with_live_prefix(std::size_t workspace_bytes, const Problem& problem) {
  if (problem.direction == Direction::dw || problem.device >= 0) return workspace_bytes;
  return static_cast<std::size_t>(
             core::round_up(static_cast<std::int64_t>(workspace_bytes), alignof(std::int64_t))) +
         prefix_bytes(problem);
}

const std::int64_t* live_prefix(const Plan& plan, const std::int32_t* starts, std::byte* workspace) {
  const Problem& p = plan.problem;
  if (p.direction == Direction::dw || p.device >= 0) return nullptr;
  auto* const prefix = reinterpret_cast<std::int64_t*>(workspace + plan.workspace_bytes - prefix_bytes(p));
  const std::int64_t block_rows = block_rows_of(p),
                     steps = p.direction == Direction::forward ? p.block.cols : p.block.rows;
  for (std::int64_t l = 0; l <= block_rows; ++l) prefix[l] = starts[l] * steps + l * kStoreSteps;
  return prefix;
}

}  // namespace sparseloom::plan
