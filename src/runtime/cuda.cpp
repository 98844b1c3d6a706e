// CUDA devices and their properties, in builds with CUDA and in builds without.
#include "runtime/cuda.h"

#ifdef SPARSELOOM_HAVE_CUDA
#include <cuda_runtime_api.h>

#include <array>
#include <mutex>
#endif

namespace sparseloom::runtime {

#ifdef SPARSELOOM_HAVE_CUDA

bool cuda_compiled() noexcept { return true; }

CudaSummary cuda_summary() {
  CudaSummary summary;
  summary.compiled = true;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    // The static runtime returns cudaErrorInsufficientDriver also if there is no driver at all.
    summary.reason = status == cudaErrorInsufficientDriver
                         ? "no NVIDIA driver, or one older than the CUDA runtime of this build"
                         : cudaGetErrorString(status);
    static_cast<void>(cudaGetLastError());  // clears the error, so that the next launch check does not see it
    return summary;
  }
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) continue;
    summary.names.push_back(std::string(properties.name) + " (sm_" + std::to_string(properties.major) +
                            std::to_string(properties.minor) + ")");
  }
  summary.devices = count;
  if (count == 0) summary.reason = "the driver shows no device";
  return summary;
}

namespace {

// More devices than any host holds. A table of fixed size needs no lock once an entry has been written.
constexpr int kMostDevices = 64;

CudaDevice read_device(int ordinal) {
  CudaDevice device;
  int major = 0, minor = 0, shared = 0, l2 = 0, clock_khz = 0, memory_khz = 0, bus_bits = 0,
      multiprocessors = 0;
  const auto ask = [ordinal](int& value, cudaDeviceAttr attribute) {
    return cudaDeviceGetAttribute(&value, attribute, ordinal) == cudaSuccess;
  };
  const bool answered =
      ask(major, cudaDevAttrComputeCapabilityMajor) && ask(minor, cudaDevAttrComputeCapabilityMinor) &&
      ask(multiprocessors, cudaDevAttrMultiProcessorCount) && ask(l2, cudaDevAttrL2CacheSize) &&
      ask(shared, cudaDevAttrMaxSharedMemoryPerBlockOptin) && ask(clock_khz, cudaDevAttrClockRate) &&
      ask(memory_khz, cudaDevAttrMemoryClockRate) && ask(bus_bits, cudaDevAttrGlobalMemoryBusWidth);
  if (!answered) {
    static_cast<void>(cudaGetLastError());
    return device;
  }
  device.sm = 10 * major + minor;
  device.multiprocessors = multiprocessors;
  device.l2_bytes = static_cast<std::size_t>(l2);
  device.shared_bytes = static_cast<std::size_t>(shared);
  device.clock_hz = 1e3 * clock_khz;
  device.memory_bytes = 2e3 * memory_khz * bus_bits / 8;  // two transfers per clock
  return device;
}

}  // namespace

const CudaDevice& cuda_device(int ordinal) {
  static const CudaDevice none;
  if (ordinal < 0 || ordinal >= kMostDevices) return none;
  static std::array<CudaDevice, kMostDevices> devices;
  static std::array<std::once_flag, kMostDevices> read;
  std::call_once(read[ordinal], [ordinal] { devices[ordinal] = read_device(ordinal); });
  return devices[ordinal];
}

CudaDeviceScope::CudaDeviceScope(int ordinal) noexcept {
  int current = -1;
  if (ordinal < 0 || cudaGetDevice(&current) != cudaSuccess || current == ordinal) return;
  if (cudaSetDevice(ordinal) == cudaSuccess) before_ = current;
}

CudaDeviceScope::~CudaDeviceScope() {
  if (before_ >= 0) cudaSetDevice(before_);
}

std::string cuda_error_text(int code) {
  const auto error = static_cast<cudaError_t>(code);
  return std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
}

#else

bool cuda_compiled() noexcept { return false; }

CudaSummary cuda_summary() {
  CudaSummary summary;
  summary.reason = "no nvcc when this library was built";
  return summary;
}

const CudaDevice& cuda_device(int) {
  static const CudaDevice none;
  return none;
}

CudaDeviceScope::CudaDeviceScope(int) noexcept {}
CudaDeviceScope::~CudaDeviceScope() { static_cast<void>(before_); }

std::string cuda_error_text(int code) { return "CUDA error " + std::to_string(code); }

#endif

}  // namespace sparseloom::runtime
