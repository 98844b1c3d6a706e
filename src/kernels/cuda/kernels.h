// The CUDA kernels' rows. Empty in a build without CUDA.
#pragma once

#include <span>

#include "kernels/args.h"

namespace sparseloom::kernels {

/// In order of preference at equal predictions.
std::span<const Kernel> cuda_kernels();

}  // namespace sparseloom::kernels
