#include "plan/cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace sparseloom::plan {
namespace {

CacheKey key(std::int64_t blocks, std::int64_t m = 1) {
  CacheKey k;
  k.problem.blocks = blocks;
  k.problem.m = m;
  return k;
}

TEST(Cache, MakesOncePerProblem) {
  Cache cache;
  int made = 0;
  const auto make = [&] { return ++made, Plan{}; };
  const auto first = cache.get(key(7), make);
  EXPECT_EQ(cache.get(key(7), make), first);
  EXPECT_EQ(made, 1);
  EXPECT_NE(cache.get(key(8), make), first);     // the number of blocks changed
  EXPECT_NE(cache.get(key(7, 2), make), first);  // the problem changed
  EXPECT_EQ(made, 3);
}

TEST(Cache, WhatAChoiceDependsOnMakesAnotherProblem) {
  Cache cache;
  const auto plain = cache.get(key(7), [] { return Plan{}; });
  CacheKey sum = key(7), misaligned = key(7), out = key(7), uneven = key(7);
  sum.problem.accumulate = true;
  misaligned.problem.aligned = false;
  out.problem.out_aligned = false;
  uneven.problem.facts = Facts::of_digest(1);
  for (const CacheKey& other : {sum, misaligned, out, uneven}) {
    EXPECT_NE(CacheKeyHash{}(other), CacheKeyHash{}(key(7)));
    EXPECT_NE(cache.get(other, [] { return Plan{}; }), plain);
  }
}

TEST(Cache, ForgetsTheOldestAtCapacity) {
  Cache cache(4);
  int made = 0;
  const auto make = [&] { return ++made, Plan{}; };
  const auto held = cache.get(key(0), make);
  for (int v = 1; v <= 4; ++v) cache.get(key(v), make);
  EXPECT_EQ(cache.size(), 4u);
  cache.get(key(4), make);
  EXPECT_EQ(made, 5);
  EXPECT_NE(cache.get(key(0), make), held);  // made anew; the old one stays valid for whoever holds it
  EXPECT_EQ(made, 6);
}

TEST(Cache, ManyThreadsShareOnePlanEach) {
  Cache cache;
  std::vector<std::thread> threads;
  std::atomic<int> differing{0};
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        const auto plan = cache.get(key(i % 10), [] { return Plan{}; });
        if (plan != cache.get(key(i % 10), [] { return Plan{}; })) ++differing;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(differing, 0);
  EXPECT_EQ(cache.size(), 10u);
}

}  // namespace
}  // namespace sparseloom::plan
