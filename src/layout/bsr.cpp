// pack and unpack between dense and block-sparse on the CPU: byte copies of the rows of blocks, for any
// dtype. Also BsrMatrix.
#include "layout/bsr.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "core/check.h"

namespace sparseloom {
namespace {

void require_dense(const char* op, const ConstMatrixView& dense, std::int64_t rows, std::int64_t cols) {
  if (dense.rows != rows || dense.cols != cols) {
    core::fail(op, "a dense matrix of " + core::shape(rows, cols), core::shape(dense.rows, dense.cols),
               "pass the whole matrix");
  }
  if (dense.stride < cols) {
    core::fail(op, "a row stride of at least " + std::to_string(cols) + " elements",
               std::to_string(dense.stride),
               "strides count elements, not bytes; a transposed matrix must be copied first");
  }
  if (dense.data == nullptr && rows > 0 && cols > 0)
    core::fail(op, "dense data", "a null pointer", "pass the matrix's memory");
}

void require_values(const char* op, const IndexView& index, const void* values) {
  if (index.rows > 0) require_supported(op, index.block);
  core::require_memory(op, {{"crow", index.crow, index.rows > 0}, {"col", index.col, index.blocks > 0}});
  if (values == nullptr && index.blocks > 0) {
    core::fail(op, "values of " + std::to_string(index.blocks) + " blocks", "a null pointer",
               "pass blocks * bm * bn elements");
  }
}

/// Calls copy(byte offset in dense, byte offset in values, bytes present, bytes of padding) for each row of
/// each stored block, for the rows [begin, end). A row below the matrix's edge has no bytes present.
template <class Copy>
void for_each_row(const ConstMatrixView& dense, const IndexView& index, std::int64_t begin, std::int64_t end,
                  Copy copy) {
  if (begin >= end) return;  // an index without rows may have no block shape
  const auto element = static_cast<std::int64_t>(size_of(dense.dtype));
  const std::int64_t row_bytes = index.block.cols * element;
  for (std::int64_t r = begin / index.block.rows; r * index.block.rows < end; ++r) {
    const std::int64_t top = std::max<std::int64_t>(begin - r * index.block.rows, 0);
    const std::int64_t bottom = std::min<std::int64_t>(end - r * index.block.rows, index.block.rows);
    for (std::int64_t i = index.crow[r]; i < index.crow[r + 1]; ++i) {
      const std::int64_t left = std::int64_t{index.col[i]} * index.block.cols;
      const std::int64_t width_bytes = std::min<std::int64_t>(index.block.cols, index.cols - left) * element;
      for (std::int64_t y = top; y < bottom; ++y) {
        const std::int64_t row = r * index.block.rows + y;
        const std::int64_t present = row < index.rows ? width_bytes : 0;
        const std::int64_t in_dense = present ? (row * dense.stride + left) * element : 0;
        copy(in_dense, (i * index.block.rows + y) * row_bytes, present, row_bytes - present);
      }
    }
  }
}

}  // namespace

void pack(const ConstMatrixView& dense, const IndexView& index, void* values) {
  require_dense("pack", dense, index.rows, index.cols);
  require_values("pack", index, values);
  const auto* source = static_cast<const std::byte*>(dense.data);
  auto* target = static_cast<std::byte*>(values);
  const auto copy = [&](std::int64_t in_dense, std::int64_t in_values, std::int64_t present,
                        std::int64_t padding) {
    if (present) std::memcpy(target + in_values, source + in_dense, static_cast<std::size_t>(present));
    if (padding) std::memset(target + in_values + present, 0, static_cast<std::size_t>(padding));
  };
  for_each_row(dense, index, 0, index.block_rows() * index.block.rows, copy);
}

void layout::Bsr::unpack(const View& index, const void* values, const MatrixView& dense, std::int64_t begin,
                         std::int64_t end) {
  const auto* source = static_cast<const std::byte*>(values);
  auto* target = static_cast<std::byte*>(dense.data);
  const auto element = static_cast<std::int64_t>(size_of(dense.dtype));
  if (index.cols > 0) {
    // Clear row by row: the memory between the rows of a strided matrix is not part of it.
    for (std::int64_t r = begin; r < end; ++r) {
      std::memset(target + r * dense.stride * element, 0, static_cast<std::size_t>(index.cols * element));
    }
  }
  for_each_row(dense, index, begin, end,
               [&](std::int64_t in_dense, std::int64_t in_values, std::int64_t present, std::int64_t) {
                 if (present)
                   std::memcpy(target + in_dense, source + in_values, static_cast<std::size_t>(present));
               });
}

void layout::Bsr::validate(const char* op, const View& view) {
  validate_index(op, view.rows, view.cols, view.block,
                 {view.crow, static_cast<std::size_t>(view.block_rows()) + 1},
                 {view.col, static_cast<std::size_t>(view.blocks)});
}

void unpack(const IndexView& index, const void* values, const MatrixView& dense) {
  require_dense("unpack", dense, index.rows, index.cols);
  require_values("unpack", index, values);
  layout::Bsr::unpack(index, values, dense, 0, index.rows);
}

BsrMatrix::BsrMatrix(BlockIndex index, DType dtype) : index_(std::move(index)), dtype_(dtype) {
  core::require_known("BsrMatrix", "dtype", dtype, DType::f8e4m3);
  const IndexView view = index_.view();
  values_.resize(static_cast<std::size_t>(view.blocks * view.block_elements()) * size_of(dtype));
}

BsrMatrix BsrMatrix::pack(const ConstMatrixView& dense, const BlockPattern& pattern) {
  BsrMatrix result(BlockIndex(pattern), dense.dtype);
  sparseloom::pack(dense, result.index_.view(), result.values());
  return result;
}

void BsrMatrix::unpack(const MatrixView& dense) const {
  if (dense.dtype != dtype_)
    core::fail("unpack", name_of(dtype_), name_of(dense.dtype), "unpack to the matrix's own dtype");
  sparseloom::unpack(index_.view(), values(), dense);
}

}  // namespace sparseloom
