// Whether plans are the same in every process.
#pragma once

#include "sparseloom/export.h"

namespace sparseloom {

/// From now on, and in every thread of the process, the choice of a kernel depends only on the problem and
/// the instruction set (on a device: its model), not on measured rates, and on the CPU not on the number of
/// threads. Different kernels give different bits, so results are then the same in every process. A plan on
/// the CPU is dense only if no sparse kernel supports the problem. Off by default.
SPARSELOOM_API void set_deterministic(bool on) noexcept;
SPARSELOOM_API bool is_deterministic() noexcept;

}  // namespace sparseloom
