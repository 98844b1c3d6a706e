// Work that threads take as they come to it, where even shares would wait for the slowest. Cores are not
// equal on a shared host: of sixteen Emerald Rapids ones, each does AMX products at a quarter of its pace for
// some of the time, milliseconds to seconds (alone, from L1: 30 or 105 ns for four; see spin_cells.h). Who
// takes a part never decides what is computed in it.
#pragma once

#include <atomic>
#include <cstdint>

#include "kernels/cpu/share.h"

namespace sparseloom::kernels::cpu {

/// Parts of a call for each of its tasks: the last one is what the slowest may still keep the others waiting
/// for.
inline constexpr std::int64_t kPartsOfTask = 4;

/// The numbers 0, 1, .., each to one caller.
class alignas(64) Claims {
 public:
  std::int64_t take() { return next_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> next_{0};
};

/// For a loop that waits for another thread.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// What one task has packed for itself and opens to the others, in parts: they come when there is nothing
/// left to pack.
struct alignas(64) OpenGroup {
  /// Nothing to take yet.
  explicit OpenGroup(std::int64_t parts) : next_(parts), done_(parts), parts_(parts) {}

  /// By its owner, once the group before is done.
  void open(Range panels, const float* packed) {
    panels_ = panels, packed_ = packed;
    done_.store(0, std::memory_order_relaxed);
    next_.store(0, std::memory_order_release);
  }
  /// body(panels, packed, part) for every part that nobody else has taken.
  template <class Body>
  void work(const Body& body) {
    for (std::int64_t part; (part = next_.fetch_add(1, std::memory_order_acq_rel)) < parts_;) {
      body(panels_, packed_, part);
      done_.fetch_add(1, std::memory_order_release);
    }
  }
  /// Until those who took a part have read what was packed.
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
