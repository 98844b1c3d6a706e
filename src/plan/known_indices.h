// Patterns by version, for plans on devices: their index arrays lie where the host does not look.
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

#include "plan/line_order.h"
#include "sparseloom/layout.h"
#include "sparseloom/plan.h"

namespace sparseloom::plan {

/// Thread-safe, bounded by the bytes of the indices: the oldest leaves.
class KnownIndices {
 public:
  explicit KnownIndices(std::size_t capacity_bytes = std::size_t{64} << 20) : capacity_(capacity_bytes) {}

  /// Copies a valid index on the host. Known ones, and those larger than all that is kept, are left alone.
  void remember(std::int64_t version, const IndexView& index);

  /// line_order of the pattern's rows (forward) or columns (dx), made once; empty too when nobody remembers
  /// it, or when it is not of the shape that the index in hand has (whoever passes a version by hand may pass
  /// another's).
  std::vector<std::uint16_t> line_order(std::int64_t version, const IndexView& index, Direction direction,
                                        LineGroups groups);

  /// Whether some rows (dx: columns), as many as `even` says from a multiple of that on, have more blocks
  /// than it allows; no where nobody remembers, as above.
  bool uneven(std::int64_t version, const IndexView& index, Direction direction, Evenness even);

  std::size_t size() const;

  /// Around a fork: a child whose parent's other thread held the lock could never take it.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  struct Known {
    std::vector<std::int32_t> crow, col;
    std::int64_t block_cols = 0;
    std::map<std::pair<Direction, LineGroups>, std::vector<std::uint16_t>> orders;
    std::size_t bytes() const { return (crow.size() + col.size()) * sizeof(std::int32_t); }
  };
  /// Null: not known, or of another shape. Under the lock.
  Known* find(std::int64_t version, const IndexView& index);

  mutable std::mutex mutex_;
  std::size_t capacity_, bytes_ = 0;
  std::unordered_map<std::int64_t, Known> known_;
  std::deque<std::int64_t> age_;
};

}  // namespace sparseloom::plan
