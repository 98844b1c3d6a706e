// The tensor memory accelerator (TMA): one thread starts the copy of a box of a matrix. A tensor map, made on
// the host, has the matrix's address and strides, the size of the box and the swizzle of its rows in shared
// memory. Elements outside the matrix are read as zero (and count as bytes copied) and are not written.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/ptx/l2_policy.cuh"

namespace sparseloom::kernels::cuda::ptx {

/// True in one lane of a warp, the same one in every call. All 32 lanes must call it. The compiler then knows
/// that one lane is left and issues a copy once; after `lane == 0` it would write a loop over the lanes
/// around each copy.
__device__ __forceinline__ bool elect_lane() {
  std::uint32_t elected;
  asm volatile(
      "{\n.reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(elected));
  return elected != 0;
}

/// Prefetches the map itself, 128 bytes, before its first use. The map may be a __grid_constant__ parameter.
__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Starts reading the box whose first element is (row, column); `barrier` counts the bytes that arrive.
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

/// Starts writing a box that was stored to shared memory before a fence_proxy_async. The write belongs to the
/// thread's open bulk group.
__device__ __forceinline__ void tma_store_2d(const CUtensorMap* map, std::int32_t column, std::int32_t row,
                                             std::uint32_t shared, L2Policy policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%1, %2}], [%3], %4;" ::"l"(
          map),
      "r"(column), "r"(row), "r"(shared), "l"(policy)
      : "memory");
}

/// Closes the group of the writes that this thread has started.
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until all groups of this thread but the youngest kPending have read their shared memory.
template <int kPending>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/// Orders this thread's earlier ordinary accesses to shared memory before the asynchronous ones (copies,
/// wgmma) that follow.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace sparseloom::kernels::cuda::ptx
