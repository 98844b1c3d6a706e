// Stands for CUDA's header of that name where kernels are compiled for the CPU: what the kernels that are
// tested so use of the language, and of the runtime. block.h runs them.
//
// A thread block's threads are fibers of one thread, which run in turns from one barrier to the next; thread
// blocks run on some threads at once. What a kernel may not do shows: an access out of bounds or a barrier
// that some threads miss at once, a missing barrier because `reversed` turns the order of fibers and thread
// blocks round, and missing order between thread blocks because several run at a time. Not shown is what a
// GPU alone decides: which loads are cached, how a warp diverges, how long it takes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "on_host/block.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ constinit thread_local  // of the thread that runs the thread block
#define __grid_constant__
#define __launch_bounds__(...)

struct alignas(8) uint2 {
  std::uint32_t x, y;
};
struct alignas(16) uint4 {
  std::uint32_t x, y, z, w;
};
struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};

using std::max, std::min;
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }

inline void __syncthreads() { ::on_host::Block::own().barrier(); }
inline void __threadfence() { ::on_host::settings().fences.fetch_add(1); }
inline void __nanosleep(unsigned) { ::on_host::Block::own().pause(); }
template <class T>
T __shfl_sync(unsigned, T x, int lane, int width = 32) {
  const int own = static_cast<int>(threadIdx.x) % 32;
  return ::on_host::OfWarp(x)[own / width * width + lane % width];
}
template <class T>
T __shfl_xor_sync(unsigned, T x, int mask) {
  return ::on_host::OfWarp(x)[(static_cast<int>(threadIdx.x) % 32) ^ mask];
}
template <class T>
T __shfl_up_sync(unsigned, T x, int distance) {
  const int own = static_cast<int>(threadIdx.x) % 32;
  return ::on_host::OfWarp(x)[own < distance ? own : own - distance];
}
inline unsigned __ballot_sync(unsigned, bool bit) {
  unsigned bits = 0;
  const ::on_host::OfWarp all(bit);
  for (int lane = 0; lane < 32; ++lane) bits |= static_cast<unsigned>(all[lane]) << lane;
  return bits;
}

template <class T>
T atomicAdd(T* to, T x) {
  return __atomic_fetch_add(to, x, __ATOMIC_RELAXED);
}
template <class T>
T atomicExch(T* to, T x) {
  return __atomic_exchange_n(to, x, __ATOMIC_RELAXED);
}
/// Counted, as what a kernel reads of its operands.
template <class T>
T __ldg(const T* from) {
  ::on_host::settings().bytes_loaded.fetch_add(sizeof(T), std::memory_order_relaxed);
  return *from;
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}

enum cudaError_t { cudaSuccess, cudaErrorInvalidValue };
using cudaStream_t = struct CUstream_st*;
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize,
  cudaFuncAttributePreferredSharedMemoryCarveout
};
inline constexpr int cudaSharedmemCarveoutDefault = -1, cudaSharedmemCarveoutMaxShared = 100;
enum cudaLaunchAttributeID {
  cudaLaunchAttributeProgrammaticStreamSerialization,
  cudaLaunchAttributeClusterDimension
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
    dim3 clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
struct cudaFuncAttributes {
  int ptxVersion;
};

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int) {
  return cudaSuccess;
}
template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel) {
  return attributes->ptxVersion = 80, cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int byte, std::size_t size, cudaStream_t) {
  return std::memset(to, byte, size), cudaSuccess;
}
template <class T>
cudaError_t cudaGetSymbolAddress(void** at, T& symbol) {
  return *at = &symbol, cudaSuccess;
}
template <class T>
cudaError_t cudaMemcpyFromSymbol(void* to, const T& symbol, std::size_t size) {
  return std::memcpy(to, &symbol, size), cudaSuccess;
}
/// Runs the grid, and returns when it is done.
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
  if (config->gridDim.x == 0 || config->blockDim.x > 1024) return cudaErrorInvalidValue;
  ::on_host::run_grid(config->gridDim, config->blockDim, [&] { kernel(arguments...); });
  return cudaSuccess;
}
