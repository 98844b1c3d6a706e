// The plan cache, keyed by problem. A pattern enters the key by its facts only, so layers of one shape share
// plans, and a topology that moves keeps its own.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "sparseloom/plan.h"

namespace sparseloom::plan {

struct CacheKey {
  Problem problem;
  std::string forced;    // kernel name, empty when the plan chooses
  std::size_t rows = 0;  // of the registry: a kernel from outside makes new plans
  friend bool operator==(const CacheKey&, const CacheKey&) = default;
};

struct CacheKeyHash {
  std::size_t operator()(const CacheKey& key) const noexcept;
};

/// Thread-safe and bounded: when `capacity` is reached, the oldest plan is dropped (each number of
/// tokens makes a plan, and would otherwise grow the cache for ever).
class Cache {
 public:
  explicit Cache(std::size_t capacity = 4096) : capacity_(capacity) {}

  /// The cached plan, or what `make` returns. `make` runs outside the lock, so two threads may both make a
  /// plan; the first one inserted is kept.
  std::shared_ptr<const Plan> get(const CacheKey& key, const std::function<Plan()>& make);
  std::size_t size() const;

  /// Called around a fork: if another thread of the parent held the lock at that moment, the child could
  /// never take it.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  mutable std::mutex mutex_;
  std::size_t capacity_;
  std::unordered_map<CacheKey, std::shared_ptr<const Plan>, CacheKeyHash> plans_;
  std::deque<CacheKey> order_;
};

}  // namespace sparseloom::plan
