#include "plan/cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace sparseloom::plan {
namespace {

CacheKey key(std::uint64_t blocks, std::uint64_t m = 1) {
  CacheKey k;
  k.verb = "toy";
  k.problem = {m, blocks};
  return k;
}

template <class Make>
Cache::Kept get(Cache& cache, const CacheKey& key, const Make& make) {
  if (auto kept = cache.find(key)) return kept;
  return cache.keep(key, std::make_shared<const int>(make()));
}

TEST(Cache, MakesOncePerProblem) {
  Cache cache;
  int made = 0;
  const auto make = [&] { return ++made; };
  const auto first = get(cache, key(7), make);
  EXPECT_EQ(get(cache, key(7), make), first);
  EXPECT_EQ(made, 1);
  EXPECT_NE(get(cache, key(8), make), first);     // the number of blocks changed
  EXPECT_NE(get(cache, key(7, 2), make), first);  // the problem changed
  EXPECT_EQ(made, 3);
}

TEST(Cache, WhatAChoiceDependsOnMakesAnotherKey) {
  Cache cache;
  const auto plain = get(cache, key(7), [] { return 0; });
  CacheKey forced = key(7), verb = key(7), grown = key(7), last = key(7);
  forced.forced = "kernel";
  verb.verb = "other";
  grown.rows = 1;
  last.problem[kKeyWords - 1] = 1;
  for (const CacheKey& other : {forced, verb, grown, last}) {
    EXPECT_NE(CacheKeyHash{}(other), CacheKeyHash{}(key(7)));
    EXPECT_NE(get(cache, other, [] { return 0; }), plain);
  }
}

TEST(Cache, ForgetsTheOldestAtCapacity) {
  Cache cache(4);
  int made = 0;
  const auto make = [&] { return ++made; };
  const auto held = get(cache, key(0), make);
  for (unsigned v = 1; v <= 4; ++v) get(cache, key(v), make);
  EXPECT_EQ(cache.size(), 4u);
  get(cache, key(4), make);
  EXPECT_EQ(made, 5);
  EXPECT_NE(get(cache, key(0), make), held);  // made anew; the old one stays valid for whoever holds it
  EXPECT_EQ(made, 6);
}

TEST(Cache, ManyThreadsShareOnePlanEach) {
  Cache cache;
  std::vector<std::thread> threads;
  std::atomic<int> differing{0};
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      for (unsigned i = 0; i < 200; ++i) {
        const auto plan = get(cache, key(i % 10), [] { return 0; });
        if (plan != get(cache, key(i % 10), [] { return 0; })) ++differing;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(differing, 0);
  EXPECT_EQ(cache.size(), 10u);
}

}  // namespace
}  // namespace sparseloom::plan
