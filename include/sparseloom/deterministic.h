// Whether plans are the same in every process.
#pragma once

#include "sparseloom/export.h"

namespace sparseloom {

/// From now on, and in every thread of the process: which kernel runs follows from the problem and the
/// instruction set (on a device: its model) alone, not from rates that were measured, and on the CPU not from
/// the number of threads. Different kernels give different bits, so results are then the same in every
/// process. A plan goes dense on the CPU only where no sparse kernel takes the problem. Off at first.
SPARSELOOM_API void set_deterministic(bool on) noexcept;
SPARSELOOM_API bool is_deterministic() noexcept;

}  // namespace sparseloom
