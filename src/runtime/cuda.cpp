#include "runtime/cuda.h"

#ifdef SPARSELOOM_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace sparseloom::runtime {

#ifdef SPARSELOOM_HAVE_CUDA

CudaSummary cuda_summary() {
  CudaSummary summary;
  summary.compiled = true;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    // cudaErrorInsufficientDriver is also what the static runtime answers where there is no driver at all.
    summary.reason = status == cudaErrorInsufficientDriver ? "no NVIDIA driver, or one older than the CUDA runtime of this build"
                                                           : cudaGetErrorString(status);
    static_cast<void>(cudaGetLastError());  // leaves no error behind for the next launch check
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

#else

CudaSummary cuda_summary() {
  CudaSummary summary;
  summary.reason = "no nvcc when this library was built";
  return summary;
}

#endif

}  // namespace sparseloom::runtime
