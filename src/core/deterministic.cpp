#include "sparseloom/deterministic.h"

#include <atomic>

namespace sparseloom {
namespace {

std::atomic<bool> deterministic{false};

}  // namespace

void set_deterministic(bool on) noexcept {
  if (deterministic.load(std::memory_order_relaxed) != on) deterministic.store(on);
}
bool is_deterministic() noexcept { return deterministic.load(std::memory_order_relaxed); }

}  // namespace sparseloom
