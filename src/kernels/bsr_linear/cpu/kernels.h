// The registry's rows for the fast CPU kernels.
#pragma once

#include <span>

#include "kernels/args.h"
#include "kernels/bsr_linear/cpu/rates.h"

namespace sparseloom::kernels {

/// The fastest instruction set comes first. A row's refusal() says whether this machine and problem suit it.
std::span<const Kernel> cpu_kernels();

}  // namespace sparseloom::kernels
