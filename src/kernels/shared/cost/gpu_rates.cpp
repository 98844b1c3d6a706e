// Reads, measures and keeps the rates of a GPU.
#include "kernels/shared/cost/gpu_rates.h"

#include <array>
#include <cmath>
#include <mutex>
#include <span>

#include "runtime/cache_file.h"
#include "runtime/rate_table.h"
#include "sparseloom/version.h"

#ifdef SPARSELOOM_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace sparseloom::kernels::cuda {
namespace {

// The probes' results on an H200 (4.21 TB/s, 4.75 TB/s and 638 TF/s), relative to the DRAM's nominal rate,
// and per clock and multiprocessor.
constexpr double kMemoryOfNominal = 0.875, kL2BytesPerClock = 18.2, kTensorFlopsPerClock = 2440;

constexpr const char* kHeader = "sparseloom gpu rates 1";

using Field = runtime::RateField<plan::GpuRates>;
constexpr Field kFields[] = {{"memory_bytes", &plan::GpuRates::memory_bytes},
                             {"l2_bytes", &plan::GpuRates::l2_bytes},
                             {"tensor_flops", &plan::GpuRates::tensor_flops}};

bool believable(const plan::GpuRates& rates, const plan::GpuRates& expected) {
  for (const Field& field : kFields) {
    const double share = rates.*field.rate / (expected.*field.rate);
    if (!(share >= kLeastOfExpected && share <= kMostOfExpected)) return false;
  }
  return true;
}

// Rounds to 1/32 of the expected rate. If nothing can be kept, each process measures for itself, and their
// plans, and so the bits of their results, should not differ.
plan::GpuRates rounded(const plan::GpuRates& rates, const plan::GpuRates& expected) {
  plan::GpuRates result;
  for (const Field& field : kFields) {
    const double quantum = expected.*field.rate / 32;
    result.*field.rate = std::round(rates.*field.rate / quantum) * quantum;
  }
  return result;
}

}  // namespace

plan::GpuRates expected_rates(const runtime::CudaDevice& device) {
  const double clocks = device.multiprocessors * device.clock_hz;
  plan::GpuRates rates;
  rates.memory_bytes = kMemoryOfNominal * device.memory_bytes;
  rates.l2_bytes = kL2BytesPerClock * clocks;
  rates.tensor_flops =
      kTensorFlopsPerClock * (device.sm >= 90 ? 1 : 0.8) * clocks;  // Ampere has a peak of 2048
  return rates;
}

std::string gpu_rates_key(const runtime::CudaDevice& device, const std::string& name, int driver) {
  const auto number = [](double value) { return std::to_string(static_cast<long long>(value)); };
  std::string key = name + ", sm_" + std::to_string(device.sm) + ", " +
                    std::to_string(device.multiprocessors) + " at " + number(device.clock_hz / 1e6) +
                    " MHz, " + number(device.memory_bytes / 1e9) + " GB/s, driver " + std::to_string(driver) +
                    ", sparseloom " SPARSELOOM_VERSION;
  for (char& c : key)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  return key;
}

std::string gpu_rates_file(const std::string& key) {
  return "gpu-rates-" + runtime::fingerprint(key) + ".txt";
}

std::string gpu_rates_text(const plan::GpuRates& rates, const std::string& key) {
  return runtime::rate_table_text(kHeader, key, std::span<const Field>(kFields), rates);
}

KnownGpuRates known_gpu_rates(const std::string& folder, const std::string& key,
                              const plan::GpuRates& expected, const MeasureGpu& measure) {
  const std::string name = gpu_rates_file(key), path = folder + "/" + name;
  const runtime::SmallFile file = folder.empty() ? runtime::SmallFile{} : runtime::read_small_file(path);
  if (file.text)
    if (const auto rates =
            runtime::parse_rate_table(*file.text, kHeader, key, std::span<const Field>(kFields));
        rates && believable(*rates, expected))
      return {*rates, "read from " + path};
  if (!measure) return {{}, "not measured: a CUDA graph is being captured"};
  const auto measured = measure();
  if (!measured) return {{}, "not measured: the GPU had no room or no time for it"};
  if (!believable(*measured, expected)) return {{}, "not measured: the GPU was not free"};
  const plan::GpuRates rates = rounded(*measured, expected);
  if (folder.empty()) return {rates, "measured, not kept: no cache folder (SPARSELOOM_CACHE)"};
  const std::string failed = runtime::replace_file(folder, name, gpu_rates_text(rates, key));
  return {rates, runtime::kept_as(path, failed, file.ignored)};
}

#ifdef SPARSELOOM_HAVE_CUDA

KnownGpuRates gpu_rates(int device, void* stream) {
  constexpr int kDevices = 64;
  static std::array<std::mutex, kDevices> mutexes;
  static std::array<std::optional<KnownGpuRates>, kDevices> known;
  const runtime::CudaDevice& properties = runtime::cuda_device(device);
  if (device < 0 || device >= kDevices || properties.sm == 0) return {};
  const std::lock_guard lock(mutexes[device]);
  if (known[device]) return *known[device];
  const runtime::CudaDeviceScope scope(device);
  auto capturing = cudaStreamCaptureStatusNone;
  int driver = 0;
  cudaDeviceProp names;
  if (cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &capturing) != cudaSuccess ||
      cudaDriverGetVersion(&driver) != cudaSuccess ||
      cudaGetDeviceProperties(&names, device) != cudaSuccess) {
    cudaGetLastError();  // clear the error for the next caller
    return {{}, "not measured: the device does not answer"};
  }
  MeasureGpu measure;
  if (capturing == cudaStreamCaptureStatusNone) {
    measure = [&]() -> std::optional<plan::GpuRates> {
      plan::GpuRates rates;
      if (sm80_measure_rates(properties, rates) != 0) return std::nullopt;
      return rates;
    };
  }
  KnownGpuRates gpu = known_gpu_rates(runtime::cache_folder(), gpu_rates_key(properties, names.name, driver),
                                      expected_rates(properties), measure);
  // A GPU that was not free is not measured again in this process either, so that its plans agree.
  if (measure || gpu.rates.memory_bytes > 0) known[device] = gpu;
  return gpu;
}

std::array<int, 4> gpu_clusters(int device) {
  const runtime::CudaDeviceScope scope(device);
  return cluster_counts(device);
}

#else

KnownGpuRates gpu_rates(int, void*) { return {}; }
std::array<int, 4> gpu_clusters(int) { return {}; }

#endif

}  // namespace sparseloom::kernels::cuda
