// The list of the kernels that ran.
#include "kernels/runs.h"

namespace sparseloom::kernels {
namespace {

constinit std::atomic<Runs*> newest{nullptr};

}  // namespace

void Runs::enter() noexcept {
  next_ = newest.load(std::memory_order_relaxed);
  while (!newest.compare_exchange_weak(next_, this, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

std::map<std::string, std::int64_t> kernel_runs() {
  std::map<std::string, std::int64_t> runs;
  for (const Runs* of = newest.load(std::memory_order_acquire); of != nullptr; of = of->next_)
    runs[of->kernel_] += of->count_.load(std::memory_order_relaxed);
  return runs;
}

}  // namespace sparseloom::kernels
