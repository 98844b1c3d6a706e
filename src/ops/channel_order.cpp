// The search for the order of inputs of which 2:4 keeps most, on the executor's threads.
#include "sparseloom/channel_order.h"

#include <atomic>
#include <string>

#include "core/check.h"
#include "layout/column_swaps.h"
#include "ops/checks.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom {

std::vector<std::int64_t> semi24_channel_order(const ConstMatrixView& w, std::int64_t rounds,
                                               const Executor& executor, SearchProgress* progress) {
  constexpr const char* op = "semi24_channel_order";
  if (executor.device >= 0)
    core::fail(op, "a weight on the CPU", "one on " + ops::place(executor.device), "move it with .cpu()");
  if (is_scaled(w.dtype))
    core::fail(op, "a weight of dtype f32, f16, bf16 or f64", name_of(w.dtype),
               "search before the weight is quantized");
  ops::require_matrix(op, w);
  if (rounds < 0) core::fail(op, "rounds of 0 or more", std::to_string(rounds), "pass 0 for no limit");
  layout::ColumnSwaps swaps(w);
  if (!swaps.finite())
    core::fail(op, "finite weights", "NaN or Inf among them", "replace them in the weight first");

  const std::int64_t groups = swaps.groups();
  SearchProgress unseen;
  SearchProgress& seen = progress == nullptr ? unseen : *progress;
  const std::atomic_ref<std::int64_t> stop(seen.stop), rounds_done(seen.rounds), scored(seen.scored);
  std::atomic_ref<std::int64_t>(seen.groups).store(groups);
  double kept = -1;
  std::vector<std::int64_t> order = swaps.order();
  for (std::int64_t round = 0; groups > 1; ++round) {
    runtime::parallel_tasks(executor, groups, [&](std::int64_t group) { swaps.refresh(group); });
    // Sums of float32 round: a round that did not gain as much as predicted is dropped, which also ends every
    // cycle.
    if (swaps.kept() <= kept) break;
    kept = swaps.kept(), order = swaps.order();
    if (rounds > 0 && round == rounds) break;
    // A group has as many pairs as there are later groups. Groups are taken from both ends in turn, so that
    // all ranges have equal work.
    scored.store(0);
    runtime::parallel_tasks(executor, groups, [&](std::int64_t task) {
      if (stop.load() != 0) return;
      swaps.score(task % 2 == 0 ? task / 2 : groups - 1 - task / 2);
      scored.fetch_add(1);
    });
    if (stop.load() != 0 || !swaps.swap()) break;
    rounds_done.store(round + 1);
  }
  return order;
}

}  // namespace sparseloom
