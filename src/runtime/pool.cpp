// Executor::pool(): the library's own threads, for hosts that lend none.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "sparseloom/executor.h"

namespace sparseloom {
namespace {

// The pool runs one job at a time. Indices are given in order to any free thread, including the caller. A
// call from inside a job, or while another caller's job runs, is executed by its own thread alone: that is
// correct, and it cannot deadlock.
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

  void grow(int threads) {
    std::lock_guard lock(mutex_);
    while (static_cast<int>(workers_) < threads - 1) {
      std::thread([this] { work(); }).detach();
      ++workers_;
    }
  }

  void run(std::int64_t count, RangeBody body) {
    std::unique_lock busy(one_job_, std::try_to_lock);
    if (!busy.owns_lock()) return body(0, count);
    {
      std::lock_guard lock(mutex_);
      body_ = body;
      next_ = 0;
      count_ = count;
      pending_ = count;
      ++generation_;
    }
    wake_.notify_all();
    take_ranges();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return pending_ == 0; });
  }

 private:
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
      }
      take_ranges();
    }
  }

  // The body is copied under the same lock as its index, so a late worker cannot run an old body on a new
  // index.
  void take_ranges() {
    for (;;) {
      RangeBody body;
      std::int64_t index;
      {
        std::lock_guard lock(mutex_);
        if (next_ >= count_) return;
        body = body_;
        index = next_++;
      }
      body(index, index + 1);
      std::lock_guard lock(mutex_);
      if (--pending_ == 0) done_.notify_all();
    }
  }

  std::mutex one_job_, mutex_;
  std::condition_variable wake_, done_;
  RangeBody body_{};
  std::int64_t next_ = 0, count_ = 0, pending_ = 0;
  std::uint64_t generation_ = 0;
  std::size_t workers_ = 0;
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
  Pool::instance().grow(executor.num_threads);
  // The pool is looked up, not stored in context: an executor made before a fork must reach the child's pool.
  executor.parallel_for = [](void*, std::int64_t count, RangeBody body) {
    Pool::instance().run(count, body);
  };
  return executor;
}

}  // namespace sparseloom
