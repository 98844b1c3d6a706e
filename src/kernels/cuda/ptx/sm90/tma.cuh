// The tensor memory accelerator: one thread starts the copy of a box of a matrix; a tensor map (made on the
// host) says where the matrix lies, how large the box is and how its rows are swizzled in shared memory. What
// lies outside the matrix is read as zero (and counts as bytes copied) and is not written.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/l2_policy.cuh"

namespace sparseloom::kernels::cuda::ptx {

/// True in one lane of a warp, the same in every call. All 32 lanes must call. Where the compiler knows that
/// one lane is left it issues a copy once; behind `lane == 0` it writes a loop over the lanes around each.
__device__ __forceinline__ bool elect_lane() {
  std::uint32_t elected;
  asm volatile(
      "{\n.reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(elected));
  return elected != 0;
}

/// Fetches the map itself, 128 bytes, ahead of its first use. It may lie in a __grid_constant__ parameter.
__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Starts reading the box whose first element is (row, column); its bytes arrive at `barrier`.
__device__ __forceinline__ void tma_load_2d(std::uint32_t shared, const CUtensorMap* map, std::int32_t column,
                                            std::int32_t row, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
      "[%4];" ::"r"(shared),
      "l"(map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void tma_load_2d(std::uint32_t shared, const CUtensorMap* map, std::int32_t column,
                                            std::int32_t row, std::uint32_t barrier, L2Policy policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, "
      "{%2, %3}], [%4], "
      "%5;" ::"r"(shared),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}

/// Starts writing a box that was stored before fence_proxy_async. Belongs to the thread's open bulk group.
__device__ __forceinline__ void tma_store_2d(const CUtensorMap* map, std::int32_t column, std::int32_t row,
                                             std::uint32_t shared, L2Policy policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%1, %2}], [%3], %4;" ::"l"(
          map),
      "r"(column), "r"(row), "r"(shared), "l"(policy)
      : "memory");
}

/// Closes the group of the writes this thread has started.
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until all but this thread's youngest kPending groups have read their shared memory.
template <int kPending>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/// Orders this thread's ordinary accesses to shared memory before the asynchronous ones (copies, wgmma) that
/// come after.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace sparseloom::kernels::cuda::ptx
