// Measures a GPU's rates one at a time: bytes from DRAM, bytes from L2, and products on tensor cores.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/shared/cost/gpu_rates.h"
#include "kernels/shared/ptx/mma.cuh"

namespace sparseloom::kernels::cuda {
namespace {

constexpr int kThreads = 256, kPerSm = 8;  // thread blocks of read_kernel
constexpr int kUnroll = 8;                 // loads of 16 bytes in flight per thread
constexpr int kMmaThreads = 512, kChains = 8, kMmaRounds = 2048;

/// Reads [0, vectors) `rounds` times, bypassing L1. `never` is false, but the compiler does not know it, so
/// it keeps the reads.
__global__ void __launch_bounds__(kThreads)
    read_kernel(const uint4* from, std::int64_t vectors, int rounds, bool never, uint4* to) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  uint4 mixed{};
  for (int round = 0; round < rounds; ++round) {
    for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < vectors;
         i += kUnroll * step) {
      uint4 read[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        read[u] = i + u * step < vectors ? __ldcg(from + i + u * step) : uint4{};
#pragma unroll
      for (const uint4& r : read) mixed.x ^= r.x, mixed.y ^= r.y, mixed.z ^= r.z, mixed.w ^= r.w;
    }
  }
  if (never) to[threadIdx.x] = mixed;
}

/// Multiplies in kChains independent chains per warp.
__global__ void __launch_bounds__(kMmaThreads) mma_kernel(bool never, float* to) {
  float sums[kChains][4] = {};
  const std::uint32_t lane = threadIdx.x * 2654435761u;
  const std::uint32_t a[4] = {lane & 0x3fff3fff, lane >> 1 & 0x3fff3fff, lane >> 2 & 0x3fff3fff,
                              lane >> 3 & 0x3fff3fff};
  for (int round = 0; round < kMmaRounds; ++round) {
#pragma unroll
    for (float(&sum)[4] : sums) ptx::mma_m16n8k16_bf16(sum, a, a[1], a[2]);
  }
  float all = 0;
#pragma unroll
  for (const float(&sum)[4] : sums) all += sum[0] + sum[1] + sum[2] + sum[3];
  if (never) to[threadIdx.x] = all;
}

/// A stream, events and memory of its own, so that it waits for no other work. The stream also frees the
/// memory, since cudaFree would wait for the whole device.
struct Bench {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  void* memory = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // no allocation breaks another thread's capture
  cudaError_t status = cudaSuccess;

  explicit Bench(std::size_t bytes) {
    keep(cudaThreadExchangeStreamCaptureMode(&mode));
    keep(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    keep(cudaEventCreate(&begin));
    keep(cudaEventCreate(&end));
    if (status == cudaSuccess) keep(cudaMallocAsync(&memory, bytes, stream));
    if (status == cudaSuccess) keep(cudaMemsetAsync(memory, 1, bytes, stream));
  }
  ~Bench() {
    if (memory != nullptr) cudaFreeAsync(memory, stream);
    if (end != nullptr) cudaEventDestroy(end);
    if (begin != nullptr) cudaEventDestroy(begin);
    if (stream != nullptr) cudaStreamDestroy(stream);
    cudaThreadExchangeStreamCaptureMode(&mode);
    cudaGetLastError();  // clear it for the next caller
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void keep(cudaError_t error) {
    if (status == cudaSuccess) status = error;
  }

  /// Seconds of the shortest of `runs` runs.
  template <class Launch>
  double best(int runs, const Launch& launch) {
    float best_ms = 1e9f;
    for (int run = 0; run < runs && status == cudaSuccess; ++run) {
      keep(cudaEventRecord(begin, stream));
      launch();
      keep(cudaGetLastError());
      keep(cudaEventRecord(end, stream));
      keep(cudaEventSynchronize(end));
      float ms = 0;
      if (status == cudaSuccess) keep(cudaEventElapsedTime(&ms, begin, end));
      if (status == cudaSuccess) best_ms = std::min(best_ms, ms);
    }
    return 1e-3 * static_cast<double>(best_ms);
  }
};

}  // namespace

int sm80_measure_rates(const runtime::CudaDevice& device, plan::GpuRates& rates) noexcept {
  // `far` is four times L2, so that the part read last is evicted before it is read again. `near`, an eighth
  // of L2, stays in L2.
  const std::int64_t far =
      std::max<std::int64_t>(4 * static_cast<std::int64_t>(device.l2_bytes), std::int64_t{64} << 20) / 16;
  const std::int64_t near =
      std::max<std::int64_t>(static_cast<std::int64_t>(device.l2_bytes) / 8, std::int64_t{1} << 20) / 16;
  constexpr int kNearRounds = 32;
  Bench bench(static_cast<std::size_t>(far) * 16);
  const auto* from = static_cast<const uint4*>(bench.memory);
  auto* to = static_cast<uint4*>(bench.memory);
  const auto grid = static_cast<unsigned>(device.multiprocessors);
  const auto read = [&](std::int64_t vectors, int rounds) {
    read_kernel<<<grid * kPerSm, kThreads, 0, bench.stream>>>(from, vectors, rounds, false, to);
  };
  const auto multiply = [&] {
    mma_kernel<<<grid * 2, kMmaThreads, 0, bench.stream>>>(false, reinterpret_cast<float*>(to));
  };

  // An idle GPU has lowered its clocks and takes some 20 ms to raise them.
  bench.best(50, multiply);
  const double tensor = bench.best(20, multiply);
  const double l2 = bench.best(20, [&] { read(near, kNearRounds); });
  const double memory = bench.best(20, [&] { read(far, 1); });
  if (bench.status != cudaSuccess) return bench.status;
  constexpr double kFlops =
      2.0 * 16 * 8 * 16 * kChains * kMmaRounds * (kMmaThreads / 32) * 2;  // per multiprocessor
  rates.tensor_flops = kFlops * device.multiprocessors / tensor;
  rates.l2_bytes = static_cast<double>(near) * 16 * kNearRounds / l2;
  rates.memory_bytes = static_cast<double>(far) * 16 / memory;
  return cudaSuccess;
}

}  // namespace sparseloom::kernels::cuda
