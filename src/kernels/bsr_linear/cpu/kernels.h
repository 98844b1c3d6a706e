// The registry's rows for the fast CPU kernels.
#pragma once

#include <span>

#include "kernels/bsr_linear/cpu/rates.h"
#include "kernels/bsr_linear/verb.h"

namespace sparseloom::kernels {

/// The fastest instruction set comes first. A row's propose() says whether this machine and problem suit it.
std::span<const Kernel> cpu_kernels();
std::span<const ScaledKernel> cpu_scaled_kernels();

}  // namespace sparseloom::kernels
