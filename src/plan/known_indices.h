// Patterns on CUDA devices, whose index arrays the host does not read, and the hints that kernels get about
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "plan/block_row_order.h"
#include "sparseloom/layout.h"
#include "sparseloom/plan.h"

namespace sparseloom::plan {

/// Hints for a kernel about the block rows (forward) or block columns (dx) of a pattern. They never change a
/// result.
struct BlockRowHints {
  std::vector<std::uint16_t> order;  // block_row_order; empty: the order of the index
  bool uneven = false;               // by kUnevenRow
  bool uneven_groups = false;        // by kUnevenGroup
};

/// Thread-safe. It holds at most `capacity_bytes` of indices; when it is full, the oldest are dropped.
class KnownIndices {
 public:
  explicit KnownIndices(std::size_t capacity_bytes = std::size_t{64} << 20) : capacity_(capacity_bytes) {}

  /// The position of an index on a device: the address of its crow.
  using Place = std::pair<int, const void*>;

  /// Copies a valid index in host memory as the one at `place`; an index remembered there before is dropped.
  /// Does nothing if the index alone exceeds the capacity.
  void remember(Place place, const IndexView& index);

  /// Gives the index at `some`, which has some of the blocks of the one at `all`, that one's hints.
  void share(Place all, Place some);

  /// The hints for kernels with these groups, made once. Null if no index was remembered there, or one of
  /// another shape than `index`: freed memory may be in use again.
  std::shared_ptr<const BlockRowHints> hints(Place place, const IndexView& index, Direction direction,
                                             BlockRowGroups groups);

  std::size_t size() const;

  /// Called around a fork: if another thread of the parent held the lock at that moment, the child could
  /// never take it.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  struct Known {
    std::vector<std::int32_t> crow, col;
    std::int64_t block_cols = 0;
    std::uint64_t age = 0;
    std::map<std::pair<Direction, BlockRowGroups>, std::shared_ptr<const BlockRowHints>> hints;
    std::size_t bytes() const { return (crow.size() + col.size()) * sizeof(std::int32_t); }
  };

  mutable std::mutex mutex_;
  std::size_t capacity_, bytes_ = 0;
  std::uint64_t next_age_ = 0;
  std::map<Place, Known> known_;
  std::map<Place, Place> shared_;  // the index whose hints a place shares; cleared at kMostShared
  static constexpr std::size_t kMostShared = 4096;
};

}  // namespace sparseloom::plan
