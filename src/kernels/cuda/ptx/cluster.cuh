// Thread-block clusters (sm_90). Compiled for less, a cluster is one thread block: the launcher asks for no other there.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/address.cuh"

namespace sparseloom::kernels::cuda::ptx {

/// Waits for all threads of the cluster; what they wrote to shared memory before is visible behind it.
__device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
#else
  __syncthreads();
#endif
}

/// 16 aligned bytes at the place that `shared` has in this thread block, but of thread block `rank` of the cluster.
__device__ __forceinline__ float4 ld_shared_cluster(const float4* shared, unsigned rank) {
#if __CUDA_ARCH__ >= 900
  float4 value;
  std::uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(shared)), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(remote)
               : "memory");
  return value;
#else
  return *shared;
#endif
}

}  // namespace sparseloom::kernels::cuda::ptx
