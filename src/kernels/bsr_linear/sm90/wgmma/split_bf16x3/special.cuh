// Tells which groups of fp32 values three bf16 cannot hold; blocks.h has the reasons.
#pragma once

#include <cuda_runtime.h>

namespace sparseloom::kernels::cuda {

/// Given a group's largest magnitude, without NaN: whether it is infinite, or so small that bf16's least
/// denormal would truncate bits. A group of zeros is not special.
__device__ __forceinline__ bool is_special(float largest) {
  return largest == __uint_as_float(0x7f800000u) || (largest > 0 && largest < 0x1p-100f);
}

}  // namespace sparseloom::kernels::cuda
