// Thread-block clusters (sm_90). Compiled for an older architecture, a cluster is one thread block; the
// launcher requests no other size there.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/ptx/address.cuh"

namespace sparseloom::kernels::cuda::ptx {

/// All threads of the cluster call cluster_arrive and cluster_wait alternately. What a thread wrote to the
/// shared memory of any thread block before it arrived is visible to every thread that has waited.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#else
  __syncthreads();
#endif
}

__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

/// Translates `shared`, an address in this thread block, to the same address in thread block `rank` of the
/// cluster. It may be read or written only once that thread block has begun.
__device__ __forceinline__ std::uint32_t address_in_cluster(std::uint32_t shared, unsigned rank) {
#if __CUDA_ARCH__ >= 900
  std::uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
  return address;
#else
  return shared;
#endif
}

__device__ __forceinline__ void st_shared_cluster(std::uint32_t address, float value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
#else
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
#endif
}

/// Reads 16 aligned bytes at the address `shared`, but in thread block `rank` of the cluster.
__device__ __forceinline__ float4 ld_shared_cluster(const float4* shared, unsigned rank) {
#if __CUDA_ARCH__ >= 900
  float4 value;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address_in_cluster(shared_address(shared), rank))
               : "memory");
  return value;
#else
  return *shared;
#endif
}

}  // namespace sparseloom::kernels::cuda::ptx
