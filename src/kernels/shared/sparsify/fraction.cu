// Launches of scalar_fraction.
#include <cstddef>
#include <cstdint>

#include "kernels/shared/sparsify/calls.h"
#include "kernels/shared/sparsify/fraction.cuh"
#include "sparsifiers/amounts.h"

namespace sparseloom::kernels::cuda::sparsify {

template cudaError_t launch_fraction(const Matrix<F32>&, std::int64_t, std::byte*, int, int, cudaStream_t);

cudaError_t scalar_fraction(const Sparsify& call) {
  return for_dtype(call.dense.dtype, [&](auto element) {
    const auto matrix = matrix_of<decltype(element)>(call.dense, call.result, true);
    return launch_fraction(matrix, sparsifiers::staying(call.spec.amount, matrix.count()), call.workspace,
                           call.multiprocessors, call.device, static_cast<cudaStream_t>(call.stream));
  });
}

std::size_t scalar_fraction_workspace(const ConstMatrixView& dense, const SparsifierSpec& spec) {
  const std::int64_t count = dense.rows * dense.cols, wanted = sparsifiers::staying(spec.amount, count);
  std::size_t bytes = 0;
  for_dtype(dense.dtype, [&](auto element) {
    // Without vectors, as misaligned results require.
    if (wanted != 0 && wanted != count) bytes = FractionSpace<decltype(element)>(count, wanted, false).bytes;
    return cudaSuccess;
  });
  return bytes;
}

}  // namespace sparseloom::kernels::cuda::sparsify
