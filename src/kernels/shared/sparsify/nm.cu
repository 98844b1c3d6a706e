// Launches of per_block_nm.
#include <algorithm>
#include <cstdint>

#include "core/check.h"
#include "kernels/shared/sparsify/calls.h"
#include "kernels/shared/sparsify/nm.cuh"
#include "kernels/shared/sparsify/stream.cuh"

namespace sparseloom::kernels::cuda::sparsify {
namespace {

template <class E, int kM>
cudaError_t launch_vectors(const Sparsify& call, std::int64_t n) {
  const Matrix<E> matrix = matrix_of<E>(call.dense, call.result, true);
  const std::int64_t spans = core::ceil_div(matrix.count(), std::int64_t{kSpan<E, kM>});
  const LaunchShape shape{
      .grid = blocks_for(core::ceil_div(spans, std::int64_t{kThreads}), call.multiprocessors),
      .block = kThreads,
      .stream = static_cast<cudaStream_t>(call.stream)};
  return launch_kernel(shape, nm_vectors_kernel<E, kM>, matrix, static_cast<int>(n), spans);
}

/// block_groups: groups per thread block at a time.
template <class E>
cudaError_t launch_groups(const Sparsify& call, const Matrix<E>& matrix, const Groups& groups,
                          int block_groups, void (*kernel)(Matrix<E>, Groups)) {
  const LaunchShape shape{
      .grid = blocks_for(core::ceil_div(groups.all, std::int64_t{block_groups}), call.multiprocessors),
      .block = kThreads,
      .stream = static_cast<cudaStream_t>(call.stream)};
  return launch_kernel(shape, kernel, matrix, groups);
}

template <class E>
cudaError_t launch(const Sparsify& call) {
  const Matrix<E> matrix = matrix_of<E>(call.dense, call.result, false);
  const std::int64_t n = call.spec.n, m = std::min(call.spec.m, matrix.cols);
  if (n >= m)
    return launch_stream(matrix_of<E>(call.dense, call.result, true), All{true}, call.multiprocessors,
                         static_cast<cudaStream_t>(call.stream));
  constexpr int kCount = Unit<E, true>::kCount;
  if (matrix.cols % m == 0 && matrix.cols % kCount == 0 && has_vectors(matrix)) {
    if (m == 4) return launch_vectors<E, 4>(call, n);
    if (m == 8) return launch_vectors<E, 8>(call, n);
    if (m == 16) return launch_vectors<E, 16>(call, n);
  }
  const std::int64_t across = core::ceil_div(matrix.cols, m);
  const Groups groups{n, m, across, matrix.rows * across};
  const auto with = [&](int block_groups, void (*kernel)(Matrix<E>, Groups)) {
    return launch_groups(call, matrix, groups, block_groups, kernel);
  };
  if (m <= 4) return with(kThreads / 4 * kGroupsEach, nm_lanes_kernel<E, 4>);
  if (m <= 8) return with(kThreads / 8 * kGroupsEach, nm_lanes_kernel<E, 8>);
  if (m <= 16) return with(kThreads / 16 * kGroupsEach, nm_lanes_kernel<E, 16>);
  if (m <= 32) return with(kThreads / 32 * kGroupsEach, nm_lanes_kernel<E, 32>);
  if (m <= 64) return with(kWarps, nm_warps_kernel<E, 2>);
  if (m <= 256) return with(kWarps, nm_warps_kernel<E, 8>);
  return with(1, nm_blocks_kernel<E>);
}

}  // namespace

cudaError_t per_block_nm(const Sparsify& call) {
  return for_dtype(call.dense.dtype, [&](auto element) { return launch<decltype(element)>(call); });
}

}  // namespace sparseloom::kernels::cuda::sparsify
