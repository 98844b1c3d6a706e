// The CUDA side of the machine, as far as `info` tells of it; cuda.cpp answers with and without CUDA in the build.
#pragma once

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

}  // namespace sparseloom::runtime
