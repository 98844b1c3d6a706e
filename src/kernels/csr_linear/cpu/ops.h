// The kernels of all instruction sets.
#pragma once

#include "kernels/csr_linear/cpu/lanes.h"
#include "kernels/csr_linear/cpu/single.h"

namespace sparseloom::kernels::cpu {

extern const LanesOps kCsrLanesAvx2, kCsrLanesAvx512;
extern const SingleOps kCsrSingleAvx2;

}  // namespace sparseloom::kernels::cpu
