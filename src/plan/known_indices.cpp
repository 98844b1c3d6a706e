// KnownIndices: remembered patterns and their hints.
#include "plan/known_indices.h"

#include <algorithm>
#include <iterator>

#include "plan/evenness.h"

namespace sparseloom::plan {

void KnownIndices::remember(Place place, const IndexView& index) {
  Known entry;
  entry.crow.assign(index.crow, index.crow + index.block_rows() + 1);
  entry.col.assign(index.col, index.col + index.blocks);
  entry.block_cols = index.block_cols();
  std::lock_guard lock(mutex_);
  shared_.erase(place);
  const auto before = known_.find(place);
  if (before != known_.end()) {
    const Known& known = before->second;
    if (known.block_cols == entry.block_cols && known.crow == entry.crow && known.col == entry.col) return;
    bytes_ -= known.bytes();
    known_.erase(before);
  }
  const std::size_t bytes = entry.bytes();
  if (bytes > capacity_) return;
  while (bytes_ + bytes > capacity_) {
    const auto oldest = std::min_element(known_.begin(), known_.end(), [](const auto& a, const auto& b) {
      return a.second.age < b.second.age;
    });
    bytes_ -= oldest->second.bytes();
    known_.erase(oldest);
  }
  entry.age = next_age_++;
  known_.emplace(place, std::move(entry));
  bytes_ += bytes;
}

void KnownIndices::share(Place all, Place some) {
  std::lock_guard lock(mutex_);
  if (shared_.size() >= kMostShared) shared_.clear();  // most of them belong to freed memory
  shared_.insert_or_assign(some, all);
}

std::shared_ptr<const BlockRowHints> KnownIndices::hints(Place place, const IndexView& index,
                                                         Direction direction, BlockRowGroups groups) {
  // This runs under the lock: two threads that request the same order wait for it rather than compute it
  // twice.
  std::lock_guard lock(mutex_);
  if (const auto other = shared_.find(place); other != shared_.end()) place = other->second;
  const auto entry = known_.find(place);
  if (entry == known_.end()) return nullptr;
  Known& known = entry->second;
  const std::int64_t block_rows = index.block_rows();
  if (std::ssize(known.crow) - 1 != block_rows || known.block_cols != index.block_cols() ||
      std::ssize(known.col) != index.blocks)
    return nullptr;
  auto& cached_hints = known.hints[{direction, groups}];
  if (cached_hints != nullptr) return cached_hints;
  BlockRows rows{known.crow, known.col, known.block_cols};
  std::vector<std::int32_t> ccol, row, slot;
  if (direction == Direction::dx) {
    ccol.resize(static_cast<std::size_t>(known.block_cols) + 1);
    row.resize(known.col.size());
    slot.resize(known.col.size());
    const IndexView cells{
        block_rows,        known.block_cols, {1, 1}, static_cast<std::int64_t>(known.col.size()),
        known.crow.data(), known.col.data()};
    transpose_index(cells, ccol.data(), row.data(), slot.data());
    rows = {ccol, row, block_rows};
  }
  BlockRowHints row_hints;
  std::vector<std::int64_t> lengths(rows.begin.size() - 1);
  for (std::size_t r = 0; r < lengths.size(); ++r) lengths[r] = rows.begin[r + 1] - rows.begin[r];
  row_hints.uneven = uneven(lengths, 1, kUnevenRow);
  row_hints.uneven_groups = uneven(lengths, kGroup, kUnevenGroup);
  row_hints.order = block_row_order(rows, groups);
  cached_hints = std::make_shared<const BlockRowHints>(std::move(row_hints));
  return cached_hints;
}

std::size_t KnownIndices::size() const {
  std::lock_guard lock(mutex_);
  return known_.size();
}

}  // namespace sparseloom::plan
