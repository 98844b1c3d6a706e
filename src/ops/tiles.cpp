// The tables of tiles that a thread has validated.
#include "plan/seen_indices.h"
#include "sparseloom/tiles_ops.h"

namespace sparseloom {

void tiles_require_valid(const char* op, const TilesView& w) {
  static thread_local plan::SeenIndices seen;
  // No table has these sizes, or they do not fit into the key.
  constexpr std::int64_t kMost = std::int64_t{1} << 28;
  const bool odd = (w.side != 64 && w.side != 128) || w.rows < 0 || w.cols < 0 || w.dense < 0 ||
                   w.dense > kMost || w.halves < 0 || w.halves > kMost;
  if (odd || !Tiles::has_memory(w)) return Tiles::validate(op, w);
  const plan::ListIndex<std::int32_t> index{
      w.rows,
      w.cols,
      w.dense << 32 | Tiles::shape(w),
      {w.table, static_cast<std::size_t>(w.groups() * w.units() * TilesView::kGroup)}};
  if (seen.contains(index)) return;
  Tiles::validate(op, w);
  seen.add(index);
}

}  // namespace sparseloom
