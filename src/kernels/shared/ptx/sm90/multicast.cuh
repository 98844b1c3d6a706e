// TMA copies that land in several thread blocks of a cluster, and arrivals at another one's barriers.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

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

/// Like tma_load_2d, into every thread block of the cluster whose bit is set in `ranks`: to the same shared
/// address, counted by the barrier at the same address there.
__device__ __forceinline__ void tma_load_2d_multicast(std::uint32_t shared, const CUtensorMap* map,
                                                      std::int32_t column, std::int32_t row,
                                                      std::uint32_t barrier, std::uint16_t ranks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3}], [%4], %5;" ::"r"(shared),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(ranks)
      : "memory");
}

/// Arrives at the barrier that lies at `barrier` in thread block `rank` of the cluster. With .release.cluster
/// spelt out, which is what the default means, multicast copies were measured 3.5 times slower.
__device__ __forceinline__ void mbarrier_arrive_in_cluster(std::uint32_t barrier, unsigned rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

}  // namespace sparseloom::kernels::cuda::ptx
