// CUDA devices and their properties. cuda.cpp implements this in builds with and without CUDA.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace sparseloom::runtime {

struct CudaSummary {
  bool compiled = false;  // this build has CUDA kernels
  int devices = 0;
  // Why `devices` is 0: no nvcc at build time, no driver or no device.
  std::string reason;
  std::vector<std::string> names;  // "NVIDIA H200 (sm_90)"
};

CudaSummary cuda_summary();
bool cuda_compiled() noexcept;

/// The properties of one device that plans and launches need. The rates follow from its clocks and widths;
/// they are not measured.
struct CudaDevice {
  int sm = 0;  // compute capability, 90 for 9.0; 0: there is no such device
  int multiprocessors = 0;
  std::size_t l2_bytes = 0;
  std::size_t shared_bytes = 0;  // the most shared memory that one thread block may have
  double clock_hz = 0;           // highest clock of the multiprocessors
  double memory_bytes = 0;       // bytes per second, from memory clock and bus width
};

/// Properties of a device, read once per process. sm is 0 if there is no device with that ordinal, or no CUDA
/// in this build. Thread-safe.
const CudaDevice& cuda_device(int ordinal);

/// Makes a device the thread's current one for the lifetime of this object. Does nothing if ordinal is -1 or
/// that device is already current.
class CudaDeviceScope {
 public:
  explicit CudaDeviceScope(int ordinal) noexcept;
  ~CudaDeviceScope();
  CudaDeviceScope(const CudaDeviceScope&) = delete;
  CudaDeviceScope& operator=(const CudaDeviceScope&) = delete;

 private:
  int before_ = -1;
};

/// "cudaErrorInvalidValue: invalid argument"
std::string cuda_error_text(int code);

}  // namespace sparseloom::runtime
