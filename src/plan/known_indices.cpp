// KnownIndices: remembered patterns, their orders and their evenness.
#include "plan/known_indices.h"

#include <algorithm>
#include <iterator>
#include <span>

namespace sparseloom::plan {

void KnownIndices::remember(std::int64_t version, const IndexView& index) {
  {
    std::lock_guard lock(mutex_);
    if (known_.contains(version)) return;
  }
  Known made;
  made.crow.assign(index.crow, index.crow + index.block_rows() + 1);
  made.col.assign(index.col, index.col + index.blocks);
  made.block_cols = index.block_cols();
  const std::size_t bytes = made.bytes();
  if (bytes > capacity_) return;
  std::lock_guard lock(mutex_);
  if (!known_.emplace(version, std::move(made)).second) return;
  age_.push_back(version);
  bytes_ += bytes;
  while (bytes_ > capacity_) {
    const auto oldest = known_.find(age_.front());
    bytes_ -= oldest->second.bytes();
    known_.erase(oldest);
    age_.pop_front();
  }
}

std::vector<std::uint16_t> KnownIndices::block_row_order(std::int64_t version, const IndexView& index,
                                                         Direction direction, BlockRowGroups groups) {
  // This runs under the lock: two threads that ask for the same order wait for it rather than make it twice.
  std::lock_guard lock(mutex_);
  Known* const found = find(version, index);
  if (found == nullptr) return {};
  Known& known = *found;
  const std::int64_t block_rows = index.block_rows();
  const auto [entry, made] = known.orders.try_emplace({direction, groups});
  if (!made) return entry->second;
  if (direction == Direction::forward) {
    entry->second = plan::block_row_order({known.crow, known.col, known.block_cols}, groups);
  } else {
    std::vector<std::int32_t> ccol(static_cast<std::size_t>(known.block_cols) + 1), row(known.col.size()),
        slot(known.col.size());
    const IndexView cells{
        block_rows,        known.block_cols, {1, 1}, static_cast<std::int64_t>(known.col.size()),
        known.crow.data(), known.col.data()};
    transpose_index(cells, ccol.data(), row.data(), slot.data());
    entry->second = plan::block_row_order({ccol, row, block_rows}, groups);
  }
  return entry->second;
}

bool KnownIndices::uneven(std::int64_t version, const IndexView& index, Direction direction, Evenness even) {
  std::lock_guard lock(mutex_);
  const Known* const known = find(version, index);
  if (known == nullptr) return false;
  const std::int64_t block_rows = direction == Direction::forward ? index.block_rows() : known->block_cols;
  std::vector<std::int64_t> lengths(
      static_cast<std::size_t>((block_rows + even.block_rows - 1) / even.block_rows));
  const auto length_of = [&](std::int64_t block_row) -> std::int64_t& {
    return lengths[static_cast<std::size_t>(block_row / even.block_rows)];
  };
  if (direction == Direction::forward) {
    for (std::int64_t r = 0; r < block_rows; ++r)
      length_of(r) += known->crow[static_cast<std::size_t>(r) + 1] - known->crow[static_cast<std::size_t>(r)];
  } else {
    for (const std::int32_t col : known->col) ++length_of(col);
  }
  const auto longest = std::max_element(lengths.begin(), lengths.end());
  if (longest == lengths.end()) return false;
  const double mean = static_cast<double>(std::ssize(known->col)) * even.block_rows /
                      static_cast<double>(std::max<std::int64_t>(block_rows, even.block_rows));
  return static_cast<double>(*longest) > even.most * mean;
}

KnownIndices::Known* KnownIndices::find(std::int64_t version, const IndexView& index) {
  const auto found = known_.find(version);
  if (found == known_.end()) return nullptr;
  Known& known = found->second;
  const bool fits =
      std::ssize(known.crow) - 1 == index.block_rows() && known.block_cols == index.block_cols();
  return fits ? &known : nullptr;
}

std::size_t KnownIndices::size() const {
  std::lock_guard lock(mutex_);
  return known_.size();
}

}  // namespace sparseloom::plan
