// The multiply rate of the CPU at this moment, for benchmarks.
#pragma once

#include <cstdint>
#include <string_view>

#include "sparseloom/executor.h"
#include "sparseloom/export.h"

namespace sparseloom::ops {

/// Multiplies in registers only for `rounds` rounds (some nanoseconds each) on every thread of the executor
/// at once, with the instructions whose rate info_json calls `rate`: "f32_avx512", "bf16_amx", ... Returns
/// the flops of all threads together. A stored rate is the best of one core while the others idle. Benchmarks
/// time this in turn with the products, so that a fraction of the peak means the same on a busy machine.
/// Throws Error if `rate` is no peak of this CPU (or of the instruction sets that SPARSELOOM_ISA allows), or
/// if rounds < 1.
SPARSELOOM_API std::int64_t spin_registers(std::string_view rate, std::int64_t rounds,
                                           const Executor& executor);

}  // namespace sparseloom::ops
