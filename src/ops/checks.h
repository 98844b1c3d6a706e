// Checks that operations of every kind share, and their errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/cuda.h"
#include "sparseloom/activation.h"
#include "sparseloom/direction.h"
#include "sparseloom/executor.h"
#include "sparseloom/export.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom::ops {

/// The name of an Executor's device in errors: "the CPU" or "cuda:1".
SPARSELOOM_API std::string place(int device);

/// The executor's CUDA device. Throws Error unless its GPU is of compute capability 8.0 or newer and this
/// build has CUDA kernels.
const runtime::CudaDevice& require_gpu(const char* op, const Executor& executor);

/// Throws Error if a launch returned a CUDA error. `kernel` is its name in the error.
void require_queued(const char* op, int error, const Executor& executor,
                    std::string_view kernel = "the kernel");

/// Throws Error if a plan was made with a lent dense product, called `name`, that the executor does not lend.
void require_lent(const char* op, bool planned, const char* name, bool lent);

/// Throws Error on a number that is no enumerator.
void require_known(const char* op, Direction direction, DType dtype, Activation activation);

/// Throws Error on a negative size, and on products whose operands [m, rows] or [m, cols] would have more
/// than 2^60 elements: byte offsets are int64.
void require_sizes(const char* op, std::int64_t m, std::int64_t rows, std::int64_t cols);

/// Whether a workspace has so many bytes, at a multiple of `alignment`. Null has none, whatever size it
/// claims.
inline bool lends(std::span<std::byte> workspace, std::size_t bytes, std::size_t alignment) noexcept {
  return workspace.size() >= bytes && (bytes == 0 || workspace.data() != nullptr) &&
         reinterpret_cast<std::uintptr_t>(workspace.data()) % alignment == 0;
}

/// Throws Error unless the matrix has memory, and rows at least its columns apart.
void require_matrix(const char* op, const ConstMatrixView& matrix);

}  // namespace sparseloom::ops
