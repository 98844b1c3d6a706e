// Launches of keep_all, random_fraction and scalar_threshold.
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/shared/sparsify/calls.h"
#include "kernels/shared/sparsify/stream.cuh"
#include "sparsifiers/amounts.h"

namespace sparseloom::kernels::cuda::sparsify {
namespace {

/// The key of a threshold, rounded to the elements' dtype.
template <class E>
typename E::Key key_of_threshold(double amount) {
  using T = std::conditional_t<
      std::is_same_v<E, F64>, double,
      std::conditional_t<std::is_same_v<E, F32>, float,
                         std::conditional_t<std::is_same_v<E, F16>, core::F16, core::Bf16>>>;
  return static_cast<typename E::Key>(sparsifiers::key_of(sparsifiers::rounded<T>(amount)));
}

}  // namespace

template cudaError_t launch_stream(const Matrix<F32>&, const All&, int, cudaStream_t);
template cudaError_t launch_stream(const Matrix<F16>&, const All&, int, cudaStream_t);
template cudaError_t launch_stream(const Matrix<Bf16>&, const All&, int, cudaStream_t);
template cudaError_t launch_stream(const Matrix<F64>&, const All&, int, cudaStream_t);

cudaError_t stream(const Sparsify& call) {
  return for_dtype(call.dense.dtype, [&](auto element) {
    using E = decltype(element);
    const Matrix<E> matrix = matrix_of<E>(call.dense, call.result, true);
    const auto launch = [&](const auto& stays) {
      return launch_stream(matrix, stays, call.multiprocessors, static_cast<cudaStream_t>(call.stream));
    };
    if (call.spec.selection == Selection::random_fraction)
      return launch(Drawn{call.spec.seed, static_cast<std::uint64_t>(std::ceil(call.spec.amount * 0x1p53))});
    if (call.spec.selection == Selection::scalar_threshold)
      return launch(Above<E>{key_of_threshold<E>(call.spec.amount)});
    return launch(All{true});
  });
}

}  // namespace sparseloom::kernels::cuda::sparsify
