// The plan cache: hashing of keys, look-up and eviction.
#include "plan/cache.h"

#include <utility>

namespace sparseloom::plan {

std::size_t CacheKeyHash::operator()(const CacheKey& key) const noexcept {
  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto mix = [&hash](std::uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29;
  };
  for (const std::uint64_t word : key.problem) mix(word);
  mix(std::hash<std::string_view>{}(key.verb));
  mix(std::hash<std::string_view>{}(key.forced) ^ key.rows);
  return hash;
}

Cache::Kept Cache::find(const CacheKey& key) const {
  std::lock_guard lock(mutex_);
  const auto entry = plans_.find(key);
  return entry != plans_.end() ? entry->second : nullptr;
}

Cache::Kept Cache::keep(const CacheKey& key, Kept plan) {
  std::lock_guard lock(mutex_);
  auto [entry, inserted] = plans_.emplace(key, std::move(plan));
  if (inserted) {
    order_.push_back(key);
    if (order_.size() > capacity_) {
      if (order_.front() != key) plans_.erase(order_.front());
      order_.pop_front();
    }
  }
  return entry->second;
}

std::size_t Cache::size() const {
  std::lock_guard lock(mutex_);
  return plans_.size();
}

}  // namespace sparseloom::plan
