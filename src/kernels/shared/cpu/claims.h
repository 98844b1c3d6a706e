// Work items that threads claim one by one; with static shares, all would wait for the slowest thread. Cores
// of a shared host are not equally fast: each of sixteen Emerald Rapids cores did AMX products far slower for
// milliseconds to seconds at a time (measured; see spin_cells.h; the log has the figures). The thread that
// claims an item never changes the item's result.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "kernels/shared/cpu/share.h"

namespace sparseloom::kernels::cpu {

/// Work items of a call per task. At the end of a call the others wait for at most one item of the slowest
/// thread.
inline constexpr std::int64_t kPartsOfTask = 4;

/// Hands out the numbers 0, 1, .., each to one caller.
class alignas(64) Claims {
 public:
  std::int64_t take() { return next_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> next_{0};
};

/// Returns once ready() is true, which another thread makes it. It spins for longer than a work item takes:
/// after yielding, a core would come back only after another process's quantum, milliseconds later. After
/// that the other thread has most likely lost its own core, perhaps to this loop, so it yields; from 1 ms on
/// it sleeps.
template <class Ready>
void wait_until(const Ready& ready) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kSpin = std::chrono::microseconds(250), kYield = std::chrono::microseconds(1000),
                 kSleep = std::chrono::microseconds(100);
  const Clock::time_point begin = Clock::now();
  while (Clock::now() - begin < kSpin)
    for (int i = 0; i < 32; ++i) {
      if (ready()) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  for (; !ready(); std::this_thread::yield())
    if (Clock::now() - begin >= kYield) std::this_thread::sleep_for(kSleep);
}

/// Work items that all must finish before something else begins, such as packing before multiplying. A call
/// runs all its phases inside one parallel region: each region waits until the scheduler has given every
/// thread a core, which beside busy processes takes milliseconds.
///
/// A thread may wait() for a phase only after its own work() on it has returned. Then every item has been
/// taken, by threads that run and wait at most for earlier phases, so no thread waits for one that never
/// comes: any number of threads finish the call, even one.
class alignas(64) Phase {
 public:
  explicit Phase(std::int64_t items) : items_(items) {}

  /// Calls body(item) for every item that no other thread has taken.
  template <class Body>
  void work(const Body& body) {
    for (std::int64_t item; (item = next_.fetch_add(1, std::memory_order_relaxed)) < items_;) {
      body(item);
      done_.fetch_add(1, std::memory_order_release);
    }
  }
  /// Returns when every item is done; their results may be read then.
  void wait() const {
    wait_until([this] { return done_.load(std::memory_order_acquire) >= items_; });
  }

 private:
  std::atomic<std::int64_t> next_{0}, done_{0};
  std::int64_t items_;
};

/// The two phases of operands that are packed together and then multiplied.
struct Stage {
  Phase packing, products;
};

/// Work items of a call without phases. Each task takes its own first, in order, so that its core's caches
/// keep the same weights from call to call; then those that other tasks have not begun, from their ends.
class Parts {
 public:
  static constexpr std::int64_t kMost = 256;
  Parts(std::int64_t parts, std::int64_t tasks) : parts_(parts), tasks_(tasks) {}

  template <class Body>
  void work(std::int64_t task, const Body& body) {
    const Range own = share(parts_, task, tasks_);
    const auto take = [&](std::int64_t part) {
      if (!taken_[part].load(std::memory_order_relaxed) &&
          !taken_[part].exchange(true, std::memory_order_relaxed))
        body(part);
    };
    for (std::int64_t part = own.begin; part < own.end; ++part) take(part);
    for (std::int64_t part = own.begin; part-- > 0;) take(part);
    for (std::int64_t part = parts_; part-- > own.end;) take(part);
  }

 private:
  std::int64_t parts_, tasks_;
  std::atomic<bool> taken_[kMost] = {};
};

/// A group of micro-panels that one task has packed, divided into parts (work items). The owner works on the
/// parts, and the other tasks help when nothing is left to pack.
struct alignas(64) OpenGroup {
  /// Begins with no part available.
  explicit OpenGroup(std::int64_t parts) : next_(parts), done_(parts), parts_(parts) {}

  /// Called by the owner, once wait() has returned for the previous group.
  void open(Range panels, const float* packed) {
    panels_ = panels, packed_ = packed;
    done_.store(0, std::memory_order_relaxed);
    next_.store(0, std::memory_order_release);
  }
  /// Calls body(panels, packed, part) for every part that no other task has taken.
  template <class Body>
  void work(const Body& body) {
    for (std::int64_t part; (part = next_.fetch_add(1, std::memory_order_acq_rel)) < parts_;) {
      body(panels_, packed_, part);
      done_.fetch_add(1, std::memory_order_release);
    }
  }
  /// Returns when every part is done, so that the packed panels may be overwritten.
  void wait() const {
    wait_until([this] { return done_.load(std::memory_order_acquire) >= parts_; });
  }

 private:
  std::atomic<std::int64_t> next_, done_;
  std::int64_t parts_;
  Range panels_{0, 0};
  const float* packed_ = nullptr;
};

}  // namespace sparseloom::kernels::cpu
