// The reference kernel, which the fast kernels are tested against: plain loops, fp64 accumulation, every
// dtype and shape.
#pragma once

#include "kernels/bsr_linear/verb.h"

namespace sparseloom::kernels {

Kernel reference_kernel();
ScaledKernel scaled_reference_kernel();

}  // namespace sparseloom::kernels
