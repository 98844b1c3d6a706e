// Executor::pool(): the library's own threads, for hosts that lend none.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "sparseloom/executor.h"

namespace sparseloom {
namespace {

// The pool runs one job at a time, divided into ranges that any free thread claims in order, the caller among
// them. The caller waits for claimed ranges only: beside busy processes a worker may come milliseconds later,
// to find nothing left. A call from inside a job, or while another caller's job runs, is executed by its own
// thread alone: that is correct, and it cannot deadlock.
class Pool {
 public:
  // The pool is leaked on purpose: joining threads in a static destructor hangs when the host exits from a
  // worker. A forked child has none of these threads, and its copies of the locks and condition variables may
  // be in any state, so the child starts with a new pool.
  static Pool& instance() {
    static const bool once = [] {
      current() = new Pool;
      return pthread_atfork(nullptr, nullptr, [] { current() = new Pool; }) == 0;
    }();
    static_cast<void>(once);
    return *current();
  }

  // Called when an executor is made, so that no product allocates. In a child after a fork an older
  // executor's calls run on their own thread.
  void grow(int workers) {
    std::lock_guard lock(mutex_);
    for (; workers_ < workers; ++workers_) std::thread([this] { work(); }).detach();
  }

  // Runs body over [0, count) on at most `threads` threads, the caller included, however many the pool has.
  void run(int threads, std::int64_t count, RangeBody body) {
    std::unique_lock busy(one_job_, std::try_to_lock);
    if (threads <= 1 || !busy.owns_lock()) return body(0, count);
    const std::int64_t ranges = std::min(count, kRangesOfThread * threads);
    std::uint64_t generation;
    {
      std::lock_guard lock(mutex_);
      body_ = body, count_ = count, ranges_ = ranges, next_ = 0, seats_ = threads - 1;
      pending_.store(ranges, std::memory_order_relaxed);
      generation = ++generation_;
    }
    for (std::int64_t i = 1; i < std::min<std::int64_t>(threads, ranges); ++i) wake_.notify_one();
    take_ranges(generation);
    wait();
  }

 private:
  // More ranges than threads, so that all wait for little at the end; few, since each is a lock.
  static constexpr std::int64_t kRangesOfThread = 8;
  // How long the caller spins for the last ranges. Sleeping and waking takes some 10 us.
  static constexpr auto kSpin = std::chrono::microseconds(50);

  static Pool*& current() {
    static Pool* pool = nullptr;
    return pool;
  }

  void work() {
    std::uint64_t seen = 0;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return generation_ != seen; });
        seen = generation_;
        if (seats_ == 0) continue;
        --seats_;
      }
      take_ranges(seen);
    }
  }

  // The body is copied under the same lock as its range, so a late worker cannot run an old body on a new
  // range, nor join a job without a seat.
  void take_ranges(std::uint64_t generation) {
    for (;;) {
      RangeBody body;
      std::int64_t begin, end;
      {
        std::lock_guard lock(mutex_);
        if (generation_ != generation || next_ >= ranges_) return;
        body = body_, begin = cut(next_), end = cut(next_ + 1);
        ++next_;
      }
      body(begin, end);
      if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        std::lock_guard lock(mutex_);
        done_.notify_all();
      }
    }
  }

  std::int64_t cut(std::int64_t range) const {
    return count_ / ranges_ * range + count_ % ranges_ * range / ranges_;
  }

  void wait() {
    const auto done = [this] { return pending_.load(std::memory_order_acquire) == 0; };
    using Clock = std::chrono::steady_clock;
    for (const Clock::time_point begin = Clock::now(); Clock::now() - begin < kSpin;)
      if (done()) return;
    std::unique_lock lock(mutex_);
    done_.wait(lock, done);
  }

  std::mutex one_job_, mutex_;
  std::condition_variable wake_, done_;
  RangeBody body_{};
  std::int64_t count_ = 0, ranges_ = 1, next_ = 0;
  std::atomic<std::int64_t> pending_{0};
  std::uint64_t generation_ = 0;
  int seats_ = 0, workers_ = 0;
};

int usable_cpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

Executor Executor::pool(int num_threads) {
  Executor executor;
  executor.num_threads = num_threads > 0 ? num_threads : usable_cpus();
  Pool::instance().grow(executor.num_threads - 1);
  // The number of threads is the context, and the pool is looked up: an executor made before a fork must
  // reach the child's pool.
  executor.context = reinterpret_cast<void*>(static_cast<std::intptr_t>(executor.num_threads));
  executor.parallel_for = [](void* threads, std::int64_t count, RangeBody body) {
    Pool::instance().run(static_cast<int>(reinterpret_cast<std::intptr_t>(threads)), count, body);
  };
  return executor;
}

}  // namespace sparseloom
