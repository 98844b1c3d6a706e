// The indices in device memory that were validated.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sparseloom/layout.h"

namespace sparseloom::plan {

/// What keeps the memory of an index from being freed and used for another one.
class IndexOwner {
 public:
  virtual ~IndexOwner() = default;
  /// Whether the lists still lie where they were: their tensor may have been given other memory.
  virtual bool is_there() const = 0;
  virtual std::int64_t bytes() const = 0;
};

/// The indices of devices that were validated, by address and shape, with the number of writes to each and
/// what holds its memory. The owners that were used last are kept, up to `most` bytes. An index without one
/// (long lists, the oldest ones, what kernels wrote) is believed at its address while calls use it, and
/// forgotten after `idle` other calls. Thread-safe.
class SeenPlaces {
 public:
  struct Place {
    int device = -1;
    const void *crow = nullptr, *col = nullptr, *ccol = nullptr;
    std::int64_t rows = 0, cols = 0, blocks = 0;
    std::uint64_t block = 0;

    Place(int on, const IndexView& index, const void* columns)
        : device(on),
          crow(index.crow),
          col(index.col),
          ccol(columns),
          rows(index.rows),
          cols(index.cols),
          blocks(index.blocks),
          block(std::bit_cast<std::uint64_t>(index.block)) {}
    friend bool operator==(const Place&, const Place&) = default;
  };

  explicit SeenPlaces(std::int64_t most = std::int64_t{64} << 20, std::uint64_t idle = 100'000)
      : most_(most), idle_(idle) {}

  /// `free_slots`: nothing follows the entries that are behind those of crow.
  bool contains(const Place& place, std::uint64_t writes, bool free_slots = false) {
    const std::lock_guard lock(mutex_);
    const auto found = seen_.find(place);
    if (found == seen_.end() || found->second.writes != writes) return false;
    Seen& seen = found->second;
    if (!seen.whole && !free_slots) return false;
    if (seen.owner ? !seen.owner->is_there() : is_idle(seen)) return false;
    seen.used = ++calls_;
    return true;
  }

  /// Takes an owner of more than a quarter of the bytes for none. Owners are let go outside of the lock:
  /// their end may wait for another one. `free_slots`: the entries behind those of crow were not validated.
  void add(const Place& place, std::uint64_t writes, bool free_slots = false,
           std::shared_ptr<const IndexOwner> owner = nullptr) {
    std::vector<std::shared_ptr<const IndexOwner>> freed;
    const std::lock_guard lock(mutex_);
    if (owner && owner->bytes() > most_ / 4) freed.push_back(std::exchange(owner, nullptr));
    if (seen_.size() >= kMostPlaces) forget_idle(freed);
    Seen& seen = seen_[place];
    let_go(seen, freed);
    seen.writes = writes, seen.used = ++calls_, seen.whole = !free_slots;
    seen.owner = std::move(owner);
    if (seen.owner) bytes_ += seen.bytes = seen.owner->bytes();
    while (bytes_ > most_) let_oldest_go(freed);
  }

  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return seen_.size();
  }
  std::int64_t held_bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

  /// Called around a fork: if another thread of the parent held the lock at that moment, the child could
  /// never take it.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  static constexpr std::size_t kMostPlaces = 1 << 14;
  using Owners = std::vector<std::shared_ptr<const IndexOwner>>;

  struct Seen {
    std::uint64_t writes = 0, used = 0;
    bool whole = true;
    std::shared_ptr<const IndexOwner> owner;
    std::int64_t bytes = 0;
  };

  struct Hash {
    std::size_t operator()(const Place& place) const {
      const auto mixed = [](const void* at) {
        return (reinterpret_cast<std::uintptr_t>(at) >> 4) * 0x9e3779b97f4a7c15u;
      };
      return static_cast<std::size_t>(mixed(place.crow) ^ mixed(place.ccol) >> 20 ^
                                      static_cast<std::uint64_t>(place.blocks));
    }
  };

  bool is_idle(const Seen& seen) const { return calls_ - seen.used > idle_; }

  void let_go(Seen& seen, Owners& freed) {
    if (!seen.owner) return;
    bytes_ -= seen.bytes;
    freed.push_back(std::exchange(seen.owner, nullptr));
  }

  void let_oldest_go(Owners& freed) {
    auto oldest = seen_.end();
    for (auto at = seen_.begin(); at != seen_.end(); ++at)
      if (at->second.owner && (oldest == seen_.end() || at->second.used < oldest->second.used)) oldest = at;
    let_go(oldest->second, freed);
    if (is_idle(oldest->second)) seen_.erase(oldest);
  }

  /// All places, if all are in use: each is validated once more.
  void forget_idle(Owners& freed) {
    for (auto at = seen_.begin(); at != seen_.end();) {
      if (is_idle(at->second)) {
        let_go(at->second, freed);
        at = seen_.erase(at);
      } else {
        ++at;
      }
    }
    if (seen_.size() < kMostPlaces) return;
    for (auto& [place, seen] : seen_) let_go(seen, freed);
    seen_.clear();
  }

  mutable std::mutex mutex_;
  std::int64_t most_, bytes_ = 0;
  std::uint64_t idle_, calls_ = 0;
  std::unordered_map<Place, Seen, Hash> seen_;
};

}  // namespace sparseloom::plan
