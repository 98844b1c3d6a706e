// Plans by pattern version and problem: topology changes make a new key, never a flag.
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
  std::int64_t version = 0;
  Problem problem;
  std::string forced;  // kernel name, empty when the plan chooses
  friend bool operator==(const CacheKey&, const CacheKey&) = default;
};

struct CacheKeyHash {
  std::size_t operator()(const CacheKey& key) const noexcept;
};

/// Thread-safe, bounded: the oldest plan leaves when capacity is reached (training that changes topology
/// would grow it for ever).
class Cache {
 public:
  explicit Cache(std::size_t capacity = 4096) : capacity_(capacity) {}

  /// The cached plan, or what `make` returns; make runs outside the lock, so two threads may both make one:
  /// the first is kept.
  std::shared_ptr<const Plan> get(const CacheKey& key, const std::function<Plan()>& make);
  std::size_t size() const;

  /// Around a fork: a child whose parent's other thread held the lock could never take it.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  mutable std::mutex mutex_;
  std::size_t capacity_;
  std::unordered_map<CacheKey, std::shared_ptr<const Plan>, CacheKeyHash> plans_;
  std::deque<CacheKey> order_;
};

}  // namespace sparseloom::plan
