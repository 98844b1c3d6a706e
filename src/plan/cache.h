// The plan cache, of all verbs. A pattern enters the key by its facts only, so layers of one shape share
// plans, and a topology that moves keeps its own.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "sparseloom/kept.h"
#include "sparseloom/verb.h"

namespace sparseloom::plan {

struct CacheKey {
  std::string_view verb;  // must live as long as the process
  ProblemKey problem{};
  KeptText forced;       // kernel name, empty when the plan chooses
  std::size_t rows = 0;  // rows in the registry: a kernel from outside makes new plans
  friend bool operator==(const CacheKey&, const CacheKey&) = default;
};

struct CacheKeyHash {
  std::size_t operator()(const CacheKey& key) const noexcept;
};

/// Thread-safe and bounded: when `capacity` is reached, the oldest plan is dropped (each number of
/// tokens makes a plan, and would otherwise grow the cache for ever).
class Cache {
 public:
  using Kept = std::shared_ptr<const void>;

  explicit Cache(std::size_t capacity = 4096) : capacity_(capacity) {}

  /// The cached plan for the key, or null.
  Kept find(const CacheKey& key) const;

  /// Keeps a plan, which is made outside of the lock. If two threads made one, both get the first.
  Kept keep(const CacheKey& key, Kept plan);
  std::size_t size() const;

  /// Called around a fork: if another thread of the parent held the lock at that moment, the child could
  /// never take it.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  mutable std::mutex mutex_;
  std::size_t capacity_;
  std::unordered_map<CacheKey, Kept, CacheKeyHash, std::equal_to<CacheKey>,
                     KeptAllocator<std::pair<const CacheKey, Kept>>>
      plans_;
  std::deque<CacheKey, KeptAllocator<CacheKey>> order_;
};

}  // namespace sparseloom::plan
