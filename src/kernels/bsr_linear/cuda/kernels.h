// The registry rows of the CUDA kernels.
#pragma once

#include <span>

#include "kernels/args.h"

namespace sparseloom::kernels {

/// In order of preference at equal predictions. Empty in a build without CUDA.
std::span<const Kernel> cuda_kernels();

}  // namespace sparseloom::kernels
