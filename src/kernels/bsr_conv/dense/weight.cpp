// pack_conv and unpack_conv.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kernels/bsr_conv/rows.h"
#include "kernels/shared/bsr/pack.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom::kernels {
namespace {

/// Bytes that one thread copies in a microsecond, as in generic/dense.h.
constexpr double kCopiedBytesPerUs = 5e3;

/// Calls copy(element of dense, element of values, elements) for the rows of each block of a block row, under
/// each tap.
template <class Copy>
void for_each_row(std::int64_t block_row, const ConstMatrixView& dense, const IndexView& index,
                  std::int64_t taps, Copy copy) {
  const std::int64_t bm = index.block.rows, bn = index.block.cols, first_row = block_row * bm;
  const std::int64_t rows = std::min(bm, index.rows - first_row);
  for (std::int64_t i = index.crow[block_row]; i < index.crow[block_row + 1]; ++i) {
    const std::int64_t first = index.col[i] * bn, elements = std::min(bn, index.cols - first);
    for (std::int64_t tap = 0; tap < taps; ++tap)
      for (std::int64_t r = 0; r < rows; ++r)
        copy((first_row + r) * dense.stride + tap * index.cols + first, ((i * taps + tap) * bm + r) * bn,
             elements);
  }
}

/// The executor with the threads that are worth it for copies of so many elements.
Executor threads_for(const Executor& executor, std::int64_t elements, std::size_t size) {
  return runtime::if_worth_it(executor,
                              static_cast<double>(elements) * static_cast<double>(size) / kCopiedBytesPerUs);
}

}  // namespace

int pack_conv(const ConstMatrixView& dense, const IndexView& index, std::int64_t taps, void* values,
              const Executor& executor) {
#ifdef SPARSELOOM_HAVE_CUDA
  if (executor.device >= 0) return cuda::sm80_bsr_pack(dense, index, taps, values, executor.stream);
#endif
  const std::size_t size = size_of(dense.dtype);
  const std::int64_t elements = taps * index.block_elements();
  auto* const to = static_cast<std::byte*>(values);
  const auto* const from = static_cast<const std::byte*>(dense.data);
  const auto bytes = [&](std::int64_t count) { return static_cast<std::size_t>(count) * size; };
  runtime::parallel_tasks(
      threads_for(executor, index.blocks * elements, size), index.block_rows(), [&](std::int64_t block_row) {
        const std::int64_t begin = index.crow[block_row], end = index.crow[block_row + 1];
        std::memset(to + bytes(begin * elements), 0, bytes((end - begin) * elements));
        for_each_row(block_row, dense, index, taps,
                     [&](std::int64_t in_dense, std::int64_t in_values, std::int64_t count) {
                       std::memcpy(to + bytes(in_values), from + bytes(in_dense), bytes(count));
                     });
      });
  return 0;
}

int unpack_conv(const IndexView& index, std::int64_t taps, const void* values, const MatrixView& dense,
                const Executor& executor) {
#ifdef SPARSELOOM_HAVE_CUDA
  if (executor.device >= 0) return cuda::sm80_bsr_unpack(index, taps, values, dense, executor.stream);
#endif
  const std::size_t size = size_of(dense.dtype);
  auto* const to = static_cast<std::byte*>(dense.data);
  const auto* const from = static_cast<const std::byte*>(values);
  const auto bytes = [&](std::int64_t count) { return static_cast<std::size_t>(count) * size; };
  runtime::parallel_tasks(
      threads_for(executor, dense.rows * dense.cols, size), index.block_rows(), [&](std::int64_t block_row) {
        const std::int64_t begin = block_row * index.block.rows;
        for (std::int64_t r = begin; r < std::min(begin + index.block.rows, index.rows); ++r)
          std::memset(to + bytes(r * dense.stride), 0, bytes(dense.cols));
        for_each_row(block_row, dense, index, taps,
                     [&](std::int64_t in_dense, std::int64_t in_values, std::int64_t count) {
                       std::memcpy(to + bytes(in_dense), from + bytes(in_values), bytes(count));
                     });
      });
  return 0;
}

}  // namespace sparseloom::kernels
