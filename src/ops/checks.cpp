#include "ops/checks.h"

#include "core/check.h"

namespace sparseloom::ops {

std::string place(int device) { return device < 0 ? "the CPU" : "cuda:" + std::to_string(device); }

const runtime::CudaDevice& require_gpu(const char* op, const Executor& executor) {
  const runtime::CudaDevice& device = runtime::cuda_device(executor.device);
  if (device.sm < 80)
    core::fail(op, "a GPU of compute capability 8.0 or newer, and a build with CUDA kernels",
               place(executor.device), "copy it to the CPU");
  return device;
}

void require_queued(const char* op, int error, const Executor& executor, std::string_view kernel) {
  if (error != 0)
    core::fail(op, std::string(kernel) + " to be queued on " + place(executor.device),
               runtime::cuda_error_text(error),
               "an earlier kernel may have failed: run with CUDA_LAUNCH_BLOCKING=1 to find it");
}

}  // namespace sparseloom::ops
