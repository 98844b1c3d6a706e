// Counts how often the CPU kernels ran, so that tests can compare the kernels that ran with the plan.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

#include "sparseloom/export.h"

namespace sparseloom::kernels {

/// A kernel's own count of its runs. It is beside the kernel's code and not in its row of the registry, so
/// that a row which launches another kernel's code is detected. On CUDA a profiler tells.
class Runs {
 public:
  explicit constexpr Runs(const char* kernel) : kernel_(kernel) {}
  /// Call it once per call of the kernel, where its work begins.
  void add() noexcept {
    if (count_.fetch_add(1, std::memory_order_relaxed) == 0) enter();
  }

 private:
  friend SPARSELOOM_API std::map<std::string, std::int64_t> kernel_runs();
  void enter() noexcept;  // adds it to the list of kernels that ran: no constructor may run before main

  const char* kernel_;  // the name that its row should have
  std::atomic<std::int64_t> count_{0};
  Runs* next_ = nullptr;
};

/// The kernels that ran in this process, by their own names, and how often. Kernels of two families that have
/// the same name (`reference`) are added up.
SPARSELOOM_API std::map<std::string, std::int64_t> kernel_runs();

}  // namespace sparseloom::kernels
