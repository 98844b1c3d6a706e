// The rank of this thread block in its cluster, and the cluster's size; without clusters 0 of 1.
#pragma once

#include <cuda_runtime.h>

namespace sparseloom::kernels::cuda::ptx {

__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ unsigned cluster_size() {
  unsigned size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

}  // namespace sparseloom::kernels::cuda::ptx
