#include "ops/checks.h"

#include <algorithm>

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

void require_lent(const char* op, bool planned, const char* name, bool lent) {
  if (planned && !lent)
    core::fail(op, std::string("an executor that lends a ") + name + ", as the plan was made with", "none",
               "make the plan with this executor");
}

void require_known(const char* op, Direction direction, DType dtype, Activation activation) {
  core::require_known(op, "direction", direction, Direction::dw);
  core::require_known(op, "dtype", dtype, DType::f8e4m3);
  core::require_known(op, "activation", activation, kActivations[kActivationCount - 1].activation);
}

void require_sizes(const char* op, std::int64_t m, std::int64_t rows, std::int64_t cols) {
  if (m < 0) core::fail(op, "m >= 0", "m = " + std::to_string(m), "pass the number of tokens");
  if (rows < 0 || cols < 0)
    core::fail(op, "sizes of 0 or more", core::shape(rows, cols), "pass the weight's shape");
  constexpr std::int64_t kMostElements = std::int64_t{1} << 60;
  const std::int64_t features = std::max<std::int64_t>({1, rows, cols});
  if (m > kMostElements / features)
    core::fail(op, "operands of at most 2^60 elements",
               "m = " + std::to_string(m) + " of " + std::to_string(features) + " features",
               "pass fewer tokens at a time");
}

void require_matrix(const char* op, const ConstMatrixView& matrix) {
  if (matrix.rows < 0 || matrix.cols < 0 || matrix.stride < matrix.cols)
    core::fail(
        op, "a matrix with a row stride of at least its columns",
        core::shape(matrix.rows, matrix.cols) + " with rows " + std::to_string(matrix.stride) + " apart",
        "strides count elements; copy a transposed matrix first");
  core::require_known(op, "dtype", matrix.dtype, DType::f8e4m3);
  if (matrix.data == nullptr && matrix.rows > 0 && matrix.cols > 0)
    core::fail(op, "dense data", "a null pointer", "pass the matrix's memory");
}

}  // namespace sparseloom::ops
