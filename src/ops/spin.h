// What the machine could multiply at this moment, for benchmarks.
#pragma once

#include <cstdint>
#include <string_view>

#include "sparseloom/executor.h"

namespace sparseloom::ops {

/// Multiplies on registers alone for `rounds` rounds (some 6 ns each) on every thread of the executor at
/// once, by the products whose rate info_json calls `rate`: "f32_avx512", "bf16_amx", ... Returns the flops
/// of all threads. A kept rate is one core's best while the others idle; a share of the peak that is to mean
/// the same in a noisy hour is timed in turn with this. Throws Error for a rate that is no peak of this CPU
/// (or of what SPARSELOOM_ISA leaves of it), and for rounds below 1.
std::int64_t spin_registers(std::string_view rate, std::int64_t rounds, const Executor& executor);

}  // namespace sparseloom::ops
