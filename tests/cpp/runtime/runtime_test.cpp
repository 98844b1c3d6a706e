#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/cpu.h"
#include "sparseloom/error.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom::runtime {
namespace {

int sum_of_marks(const Executor& executor, int count) {
  std::vector<std::atomic<int>> marks(static_cast<std::size_t>(count));
  parallel_for(executor, count, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) ++marks[static_cast<std::size_t>(i)];
  });
  int total = 0;
  for (auto& mark : marks) total += mark == 1 ? 1 : 1000;
  return total;
}

TEST(ParallelFor, RunsEachIndexOnce) {
  for (int threads : {1, 2, 3, 8})
    for (int count : {0, 1, 2, 7, 100}) EXPECT_EQ(sum_of_marks(Executor::pool(threads), count), count);
  EXPECT_EQ(sum_of_marks(Executor::serial(), 5), 5);
}

TEST(Pool, ManyCallersAndNestedCallsFinish) {
  const Executor pool = Executor::pool(3);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 6; ++t)
    callers.emplace_back([&] {
      for (int i = 0; i < 100; ++i)
        parallel_for(pool, 4, [&](std::int64_t begin, std::int64_t end) {
          if (sum_of_marks(pool, 9) != 9) wrong += static_cast<int>(end - begin);
        });
    });
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Pool, ACallHasAtMostItsOwnThreads) {
  sum_of_marks(Executor::pool(6), 12);  // the pool keeps five workers
  for (const int threads : {1, 2, 3}) {
    std::mutex mutex;
    std::set<std::thread::id> came;
    parallel_for(Executor::pool(threads), 64, [&](std::int64_t, std::int64_t) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // time for others to come
      const std::lock_guard lock(mutex);
      came.insert(std::this_thread::get_id());
    });
    EXPECT_LE(static_cast<int>(came.size()), threads);
  }
}

TEST(Pool, WaitsForNoWorkerThatHasNoWork) {
  // The only worker is held by an earlier call of another thread; the caller does all ranges of its own.
  const Executor pool = Executor::pool(2);
  std::atomic<bool> held{false}, release{false};
  std::thread other([&] {
    parallel_for(pool, 2, [&](std::int64_t, std::int64_t) {
      held = true;
      while (!release) std::this_thread::yield();
    });
  });
  while (!held) std::this_thread::yield();
  EXPECT_EQ(sum_of_marks(pool, 100), 100);
  release = true;
  other.join();
}

TEST(Pool, WorksInAForkedChild) {
  const Executor pool = Executor::pool(2);
  ASSERT_EQ(sum_of_marks(pool, 8), 8);
  const pid_t child = fork();  // the child has none of the pool's threads: its calls must not wait for them
  if (child == 0) _exit(sum_of_marks(pool, 8) == 8 ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Pool, AThrowingCallbackPassesThrough) {
  Executor executor;
  executor.num_threads = 2;
  executor.parallel_for = [](void*, std::int64_t, RangeBody) {
    throw std::runtime_error("host pool is gone");
  };
  EXPECT_THROW(parallel_for(executor, 4, [](std::int64_t, std::int64_t) {}), std::runtime_error);
}

TEST(L2CacheBytes, IsTheSystemsOrOfAUsualCore) {
  const long known = sysconf(_SC_LEVEL2_CACHE_SIZE);
  EXPECT_EQ(l2_cache_bytes(), known > 0 ? known : 1 << 20);
}

TEST(Isa, HasItsSubsetsInAnyOrder) {
  EXPECT_TRUE(Isa::amx.has(Isa::avx512_vnni));
  EXPECT_TRUE(Isa::avx512_bf16.has(Isa::avx512));
  EXPECT_TRUE(Isa::avx2.has(Isa::generic));
  // Neither of these has the other, and an extension that is not named stands beside AVX2 alone.
  EXPECT_FALSE(Isa::avx512_bf16.has(Isa::avx512_vnni));
  EXPECT_FALSE(Isa::avx512_vnni.has(Isa::avx512_bf16));
  constexpr Isa own{1u << 20}, both = Isa::avx2 | own;
  EXPECT_TRUE(both.has(own));
  EXPECT_FALSE(both.has(Isa::avx512));
  EXPECT_FALSE(Isa::amx.has(both));
  EXPECT_STREQ(name_of(both), "avx2");
  EXPECT_STREQ(name_of(Isa::avx512_bf16), "avx512_bf16");
}

TEST(CappedIsa, IsTheMachinesUnlessForcedLower) {
  EXPECT_EQ(capped_isa(nullptr), detected_isa());
  EXPECT_EQ(capped_isa(""), detected_isa());
  for (Isa isa : {Isa::generic, Isa::avx2, Isa::avx512, Isa::avx512_vbmi2, Isa::avx512_vnni, Isa::avx512_bf16,
                  Isa::amx}) {
    if (detected_isa().has(isa))
      EXPECT_EQ(capped_isa(name_of(isa)), isa);
    else
      EXPECT_THROW(capped_isa(name_of(isa)), Error);
  }
  try {
    capped_isa("sse9");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "[SPARSELOOM_ISA] expected generic, avx2, avx512, avx512_vbmi2, avx512_vnni, avx512_bf16 or "
                 "amx, got 'sse9'; unset SPARSELOOM_ISA");
  }
}

// Runs under a ceiling or an emulator say what they expect to find: else a dispatch that always answered
// "generic" would pass there.
TEST(ActiveIsa, IsWhatTheRunnerExpects) {
  const char* expected = std::getenv("SPARSELOOM_TEST_ISA");
  if (expected == nullptr) GTEST_SKIP() << "SPARSELOOM_TEST_ISA names none";
  EXPECT_STREQ(name_of(active_isa()), expected);
}

}  // namespace
}  // namespace sparseloom::runtime
