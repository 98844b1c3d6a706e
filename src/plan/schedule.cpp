#include "plan/schedule.h"

namespace sparseloom::plan {
namespace {

// Writing an output tile costs about as much as this many reduction steps: 8 outputs x 48 tokens are transposed and stored in
// some 200 cycles, a step is 24 FMAs in 12 to 24. It also keeps empty rows from counting as free.
constexpr std::int64_t kStoreSteps = 12;

}  // namespace

std::vector<std::int64_t> cost_prefix(Direction direction, const IndexView& index) {
  if (direction == Direction::dw) return {};
  const bool forward = direction == Direction::forward;
  const std::int64_t lines = forward ? index.block_rows() : index.block_cols();
  const std::int64_t steps = forward ? index.block.cols : index.block.rows;
  std::vector<std::int64_t> prefix(lines + 1, 0);
  if (forward)
    for (std::int64_t r = 0; r < lines; ++r) prefix[r + 1] = index.crow[r + 1] - index.crow[r];
  else
    for (std::int64_t i = 0; i < index.blocks; ++i) ++prefix[index.col[i] + 1];
  for (std::int64_t l = 0; l < lines; ++l) prefix[l + 1] = prefix[l] + prefix[l + 1] * steps + kStoreSteps;
  return prefix;
}

}  // namespace sparseloom::plan
