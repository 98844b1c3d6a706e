// Launches of blockwise_fraction: scores, the largest of them, and the pass that takes their blocks.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/check.h"
#include "kernels/shared/sparsify/blockwise.cuh"
#include "kernels/shared/sparsify/calls.h"
#include "kernels/shared/sparsify/fraction.cuh"
#include "sparsifiers/amounts.h"

namespace sparseloom::kernels::cuda::sparsify {
namespace {

Blocks blocks_of(const ConstMatrixView& dense, const SparsifierSpec& spec) {
  Blocks blocks{std::min(spec.block_rows, dense.rows), std::min(spec.block_cols, dense.cols), 0, 0};
  blocks.across = core::ceil_div(dense.cols, blocks.cols);
  blocks.all = blocks.across * core::ceil_div(dense.rows, blocks.rows);
  return blocks;
}

/// Scores, a byte per block that says whether it stays, and the workspace of the search.
struct Space {
  std::size_t chosen, search, bytes;
  Space(const Blocks& blocks, std::int64_t wanted) {
    const auto all = static_cast<std::size_t>(blocks.all);
    chosen = (all * sizeof(float) + 15) / 16 * 16;
    search = chosen + (all + 15) / 16 * 16;
    bytes = search + FractionSpace<F32>(blocks.all, wanted, true).bytes;
  }
};

template <class E, int kGroup>
cudaError_t launch_scores(const Sparsify& call, const Matrix<E>& matrix, const Blocks& blocks) {
  const LaunchShape shape{
      .grid = blocks_for(core::ceil_div(blocks.all, std::int64_t{kThreads / kGroup}), call.multiprocessors),
      .block = kThreads,
      .stream = static_cast<cudaStream_t>(call.stream)};
  return launch_kernel(shape, score_kernel<E, kGroup>, matrix, blocks,
                       reinterpret_cast<float*>(call.workspace));
}

/// About as many threads per block as have some elements each.
template <class E>
cudaError_t launch_scores(const Sparsify& call, const Matrix<E>& matrix, const Blocks& blocks) {
  const std::int64_t elements = blocks.rows * blocks.cols;
  if (elements >= 4 * kThreads) return launch_scores<E, kThreads>(call, matrix, blocks);
  if (elements >= 64) return launch_scores<E, 32>(call, matrix, blocks);
  if (elements >= 16) return launch_scores<E, 8>(call, matrix, blocks);
  return launch_scores<E, 1>(call, matrix, blocks);
}

}  // namespace

std::size_t blockwise_fraction_workspace(const ConstMatrixView& dense, const SparsifierSpec& spec) {
  const Blocks blocks = blocks_of(dense, spec);
  return Space(blocks, sparsifiers::staying(spec.amount, blocks.all)).bytes;
}

cudaError_t blockwise_fraction(const Sparsify& call) {
  const auto stream = static_cast<cudaStream_t>(call.stream);
  const Blocks blocks = blocks_of(call.dense, call.spec);
  const std::int64_t wanted = sparsifiers::staying(call.spec.amount, blocks.all);
  const Space space(blocks, wanted);
  auto* const scores = reinterpret_cast<std::uint32_t*>(call.workspace);
  auto* const chosen = reinterpret_cast<std::uint8_t*>(call.workspace + space.chosen);
  const Matrix<F32> of_scores{scores, 1, blocks.all, blocks.all, chosen, nullptr, nullptr};
  return for_dtype(call.dense.dtype, [&](auto element) {
    using E = decltype(element);
    cudaError_t status = launch_scores(call, matrix_of<E>(call.dense, call.result, false), blocks);
    if (status == cudaSuccess)
      status = launch_fraction(of_scores, wanted, call.workspace + space.search, call.multiprocessors,
                               call.device, stream);
    const InBlocks stays{chosen, call.dense.rows, call.dense.cols, blocks.rows, blocks.cols, blocks.across};
    if (status == cudaSuccess)
      status =
          launch_stream(matrix_of<E>(call.dense, call.result, true), stays, call.multiprocessors, stream);
    return status;
  });
}

}  // namespace sparseloom::kernels::cuda::sparsify
