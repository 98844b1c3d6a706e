// The CUDA side of the machine: devices and what they can do. cuda.cpp answers with and without CUDA in the
// build.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace sparseloom::runtime {

struct CudaSummary {
  bool compiled = false;  // CUDA kernels are in this build
  int devices = 0;
  std::string reason;              // why there is none: no nvcc at build time, no driver, no device
  std::vector<std::string> names;  // "NVIDIA H200 (sm_90)"
};

CudaSummary cuda_summary();
bool cuda_compiled() noexcept;

/// What plans and launches ask of one device. Rates are what its clocks and widths allow, not measured ones.
struct CudaDevice {
  int sm = 0;  // compute capability, 90 for 9.0; 0: no such device
  int multiprocessors = 0;
  std::size_t l2_bytes = 0;
  std::size_t shared_bytes = 0;  // most that one block may ask for
  double clock_hz = 0;           // highest of the multiprocessors
  double memory_bytes = 0;       // per second, by memory clock and bus width
};

/// Properties of a device, read once per process; sm = 0 when there is none of that ordinal, or no CUDA in
/// this build. Thread-safe.
const CudaDevice& cuda_device(int ordinal);

/// Makes a device the thread's current one for a scope; does nothing for -1 or when it is already.
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
