// Work items that threads claim one by one, where static shares would make all wait for the slowest thread.
// Cores of a shared host are not equally fast: each of sixteen Emerald Rapids cores was measured to do AMX
// products far slower for milliseconds to seconds at a time (see spin_cells.h; the log has the figures).
// Which thread claims an item never changes what is computed in it.
#pragma once

#include <atomic>
#include <cstdint>

#include "kernels/bsr_linear/cpu/share.h"

namespace sparseloom::kernels::cpu {

/// Work items of a call for each of its tasks. At the end of a call the others wait for at most one item of
/// the slowest thread.
inline constexpr std::int64_t kPartsOfTask = 4;

/// Hands out the numbers 0, 1, .., each to one caller.
class alignas(64) Claims {
 public:
  std::int64_t take() { return next_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> next_{0};
};

/// To be called in a loop that waits for another thread.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// A group of micro-panels that one task has packed, divided into parts (work items). The owner works on the
/// parts, and the other tasks help when nothing is left to pack.
struct alignas(64) OpenGroup {
  /// Begins with no part to take.
  explicit OpenGroup(std::int64_t parts) : next_(parts), done_(parts), parts_(parts) {}

  /// Called by the owner, once wait() has returned for the group before.
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
    while (done_.load(std::memory_order_acquire) < parts_) spin_pause();
  }

 private:
  std::atomic<std::int64_t> next_, done_;
  std::int64_t parts_;
  Range panels_{0, 0};
  const float* packed_ = nullptr;
};

}  // namespace sparseloom::kernels::cpu
