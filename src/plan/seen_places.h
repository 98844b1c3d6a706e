// The indices in device memory that were validated.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "sparseloom/layout.h"

namespace sparseloom::plan {

/// The indices of devices that were validated last, by address, shape and number of writes. Thread-safe.
class SeenPlaces {
 public:
  struct Place {
    int device = -1;
    const void *crow = nullptr, *col = nullptr, *ccol = nullptr;
    std::int64_t rows = 0, cols = 0, blocks = 0;
    std::uint64_t block = 0, writes = 0;

    Place() = default;
    Place(int on, const IndexView& index, const void* columns, std::uint64_t count)
        : device(on),
          crow(index.crow),
          col(index.col),
          ccol(columns),
          rows(index.rows),
          cols(index.cols),
          blocks(index.blocks),
          block(std::bit_cast<std::uint64_t>(index.block)),
          writes(count) {}
    friend bool operator==(const Place&, const Place&) = default;
  };

  bool contains(const Place& place) const {
    const std::lock_guard lock(mutex_);
    return seen_[slot_of(place)] == place;
  }
  void add(const Place& place) {
    const std::lock_guard lock(mutex_);
    seen_[slot_of(place)] = place;
  }

  /// Called around a fork: if another thread of the parent held the lock at that moment, the child could
  /// never take it.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  static constexpr std::size_t kSlots = 4096;

  /// Products with and without the column index, and with different widths, have separate slots.
  static std::size_t slot_of(const Place& place) {
    const auto address = reinterpret_cast<std::uintptr_t>(place.crow);
    const std::uint64_t mixed = (address >> 6 ^ (place.ccol != nullptr)) * 0x9e3779b97f4a7c15u;
    return static_cast<std::size_t>(mixed >> 40) % kSlots;
  }

  mutable std::mutex mutex_;
  std::array<Place, kSlots> seen_;
};

}  // namespace sparseloom::plan
