// Counts how often the CPU kernels ran, so that tests can compare what ran with what the plan said.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sparseloom/export.h"

namespace sparseloom::kernels {

/// A kernel's own count of its runs. It lies beside the kernel's code and not in its row of the registry: a
/// row that launched another kernel's code would be found out. On CUDA a profiler tells.
class Runs {
 public:
  explicit constexpr Runs(const char* kernel) : kernel_(kernel) {}
  /// To be called once for each call of the kernel, where its work begins.
  void add() noexcept {
    if (count_.fetch_add(1, std::memory_order_relaxed) == 0) enter();
  }

 private:
  friend SPARSELOOM_API std::vector<std::pair<std::string, std::int64_t>> kernel_runs();
  void enter() noexcept;  // into the list of those that ran: no constructor may run before main

  const char* kernel_;  // the name that its row should have
  std::atomic<std::int64_t> count_{0};
  Runs* next_ = nullptr;
};

/// The kernels that ran in this process, by the names that they have for themselves, and how often.
SPARSELOOM_API std::vector<std::pair<std::string, std::int64_t>> kernel_runs();

}  // namespace sparseloom::kernels
