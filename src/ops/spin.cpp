// spin_registers: runs a register-only multiply loop on every thread.
#include "ops/spin.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "core/check.h"
#include "kernels/bsr_linear/cpu/rates.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom::ops {

std::int64_t spin_registers(std::string_view rate, std::int64_t rounds, const Executor& executor) {
  constexpr const char* op = "spin_registers";
  if (rounds < 1)
    core::fail(op, "at least one round", std::to_string(rounds), "pass some 100000 for a millisecond");
  constexpr std::int64_t kMostRounds = 1'000'000'000;  // some ten seconds, which nothing can interrupt
  if (rounds > kMostRounds)
    core::fail(op, "at most " + std::to_string(kMostRounds) + " rounds", std::to_string(rounds),
               "call it several times");
  const kernels::Spin spin = kernels::register_spin(rate);
  if (spin == nullptr)
    core::fail(op, "a register peak of this CPU", "'" + std::string(rate) + "'",
               "see info's rates for those that are not 0");
  std::atomic<std::int64_t> flops{0};
  runtime::parallel_for(executor, std::max(executor.num_threads, 1),
                        [&](std::int64_t begin, std::int64_t end) {
                          for (std::int64_t i = begin; i < end; ++i)
                            flops.fetch_add(spin(rounds), std::memory_order_relaxed);
                        });
  return flops.load(std::memory_order_relaxed);
}

}  // namespace sparseloom::ops
