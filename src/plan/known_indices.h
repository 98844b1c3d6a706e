// Patterns by version, for plans on CUDA devices, whose index arrays lie where the host does not read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/block_row_order.h"
#include "sparseloom/layout.h"
#include "sparseloom/plan.h"

namespace sparseloom::plan {

/// Thread-safe. It holds at most `capacity_bytes` of indices; when it is full, the oldest are dropped.
class KnownIndices {
 public:
  explicit KnownIndices(std::size_t capacity_bytes = std::size_t{64} << 20) : capacity_(capacity_bytes) {}

  /// Copies a valid index in host memory. Does nothing if the version is known already or the index alone is
  /// larger than the capacity.
  void remember(std::int64_t version, const IndexView& index);

  /// block_row_order of the pattern's block rows (forward) or block columns (dx), made once. It is also empty
  /// if the version is unknown, or if the remembered index has another shape than `index`: a caller who
  /// passes versions by hand may pass the version of another pattern.
  std::vector<std::uint16_t> block_row_order(std::int64_t version, const IndexView& index,
                                             Direction direction, BlockRowGroups groups);

  /// Whether some even.block_rows consecutive block rows (dx: block columns), counted from a multiple of that
  /// number, have more than even.most times the mean number of blocks. False if the version is unknown or the
  /// shape differs, as above.
  bool uneven(std::int64_t version, const IndexView& index, Direction direction, Evenness even);

  std::size_t size() const;

  /// Called around a fork: if another thread of the parent held the lock at that moment, the child could
  /// never take it.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  struct Known {
    std::vector<std::int32_t> crow, col;
    std::int64_t block_cols = 0;
    std::map<std::pair<Direction, BlockRowGroups>, std::vector<std::uint16_t>> orders;
    std::size_t bytes() const { return (crow.size() + col.size()) * sizeof(std::int32_t); }
  };
  /// Null if the version is unknown or has another shape. Call it with the lock held.
  Known* find(std::int64_t version, const IndexView& index);

  mutable std::mutex mutex_;
  std::size_t capacity_, bytes_ = 0;
  std::unordered_map<std::int64_t, Known> known_;
  std::deque<std::int64_t> age_;
};

}  // namespace sparseloom::plan
