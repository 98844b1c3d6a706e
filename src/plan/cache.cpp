// The plan cache: hashing of keys, look-up and eviction.
#include "plan/cache.h"

namespace sparseloom::plan {

std::size_t CacheKeyHash::operator()(const CacheKey& key) const noexcept {
  const Problem& p = key.problem;
  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto mix = [&hash](std::uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29;
  };
  mix(static_cast<std::uint64_t>(p.m));
  mix(static_cast<std::uint64_t>(p.rows) << 32 ^ static_cast<std::uint64_t>(p.cols));
  mix(static_cast<std::uint64_t>(p.blocks) << 16 ^ static_cast<std::uint64_t>(p.block.rows) << 8 ^
      static_cast<std::uint64_t>(p.block.cols));
  mix(static_cast<std::uint64_t>(p.direction) | static_cast<std::uint64_t>(p.dtype) << 8 |
      static_cast<std::uint64_t>(p.activation) << 16 | static_cast<std::uint64_t>(p.bias) << 24 |
      static_cast<std::uint64_t>(p.can_gemm) << 25 | static_cast<std::uint64_t>(p.strict) << 26 |
      static_cast<std::uint64_t>(p.tf32) << 27 | static_cast<std::uint64_t>(p.out) << 28 |
      static_cast<std::uint64_t>(p.threads) << 32);
  mix(static_cast<std::uint64_t>(static_cast<std::uint32_t>(p.device)) |
      static_cast<std::uint64_t>(p.residual) << 32 | static_cast<std::uint64_t>(p.accumulate) << 33 |
      static_cast<std::uint64_t>(p.fast_accum) << 34 | static_cast<std::uint64_t>(p.aligned) << 35 |
      static_cast<std::uint64_t>(p.out_aligned) << 45 |
      static_cast<std::uint64_t>(p.facts.digest() + 1) << 36);
  mix(std::hash<std::string>{}(key.forced) ^ key.rows);
  return hash;
}

std::shared_ptr<const Plan> Cache::get(const CacheKey& key, const std::function<Plan()>& make) {
  {
    std::lock_guard lock(mutex_);
    if (auto found = plans_.find(key); found != plans_.end()) return found->second;
  }
  auto made = std::make_shared<const Plan>(make());
  std::lock_guard lock(mutex_);
  auto [entry, inserted] = plans_.emplace(key, made);
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
