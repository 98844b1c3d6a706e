// The fast CPU kernels: their rows.
#pragma once

#include <span>

#include "kernels/args.h"
#include "kernels/cpu/rates.h"

namespace sparseloom::kernels {

/// Fastest instruction set first. A row's refusal() says whether this machine and problem suit it.
std::span<const Kernel> cpu_kernels();

}  // namespace sparseloom::kernels
