// TMA copies of a box of a four-dimensional tensor; see tma.cuh. Coordinates begin with the contiguous
// dimension.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace sparseloom::kernels::cuda::ptx {

/// Starts reading the box whose first element is (x3, x2, x1, x0); `barrier` counts the bytes that arrive.
__device__ __forceinline__ void tma_load_4d(std::uint32_t shared, const CUtensorMap* map, std::int32_t x0,
                                            std::int32_t x1, std::int32_t x2, std::int32_t x3,
                                            std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
      "%5}], [%6];" ::"r"(shared),
      "l"(map), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(barrier)
      : "memory");
}

}  // namespace sparseloom::kernels::cuda::ptx
