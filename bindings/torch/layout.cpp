// The operators pack, unpack, block_scores, and those of index tensors.
#include "sparseloom/layout.h"

#include <span>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "registration.h"
#include "sparseloom/ops.h"

namespace sparseloom::binding {
namespace {

std::span<const std::int32_t> span_of(const char* op, const char* name, const Tensor& tensor) {
  return {indices_of(op, name, tensor, -1), static_cast<std::size_t>(tensor.numel())};
}

Tensor pack(const Tensor& dense, const Tensor& crow, const Tensor& col, std::int64_t bm, std::int64_t bn) {
  if (dense.dim() != 2)
    core::fail("pack", "a matrix [rows, cols]", shape_of(dense), "pass a weight of two dimensions");
  const int device = device_of("pack", "dense", dense);
  const Matrix matrix = matrix_of("pack", "dense", dense);
  const BlockShape block = block_of("pack", matrix.view.rows, matrix.view.cols, bm, bn);
  const IndexView index =
      index_of_pair("pack", crow, col, matrix.view.rows, matrix.view.cols, block, device, "dense");
  Tensor values = new_like("pack", dense, {index.blocks, bm, bn});
  const Executor executor = torch_executor(device);
  sparseloom::pack(matrix.view, index, values.mutable_data_ptr(), executor);
  // An index that moves has free slots, which are zero in all tensors that belong to it.
  clear_free_blocks(values.mutable_data_ptr(), index.block_elements() * values.element_size(),
                    index.crow + index.block_rows(), index.blocks, executor);
  return values;
}

Tensor unpack(const Tensor& given_values, const Tensor& crow, const Tensor& col, std::int64_t rows,
              std::int64_t cols) {
  const DType dtype = dtype_of("unpack", "values", given_values);
  const int device = device_of("unpack", "values", given_values);
  const Tensor values = torch::stable::contiguous(given_values);
  const BlockShape block = block_of_values("unpack", values);
  const IndexView index = index_of_pair("unpack", crow, col, rows, cols, block, device, "values");
  const void* data = values_of("unpack", values, index);
  Tensor dense = new_like("unpack", values, {rows, cols});
  sparseloom::unpack(index, data, {dense.mutable_data_ptr(), dtype, rows, cols, cols},
                     torch_executor(device));
  return dense;
}

Tensor scores(const Tensor& dense, std::int64_t bm, std::int64_t bn, Text norm_name) {
  const std::string norm = taken(norm_name);
  if (dense.dim() != 2)
    core::fail("block_scores", "a matrix [rows, cols]", shape_of(dense), "pass a weight of two dimensions");
  const BlockNorm kind = block_norm_of("block_scores", norm);
  require_cpu("block_scores", "dense", dense);
  const Matrix matrix = matrix_of("block_scores", "dense", dense);
  const BlockShape block = block_of("block_scores", matrix.view.rows, matrix.view.cols, bm, bn);
  const std::int64_t r = core::ceil_div(matrix.view.rows, bm), c = core::ceil_div(matrix.view.cols, bn);
  Tensor out = new_cpu({r, c}, ScalarType::Float);
  block_scores(matrix.view, block, kind,
               std::span(static_cast<float*>(out.mutable_data_ptr()), static_cast<std::size_t>(r * c)));
  return out;
}

// A valid index on the CPU. The operators that read an index by positions check it, since they also serve
// programs that never called validate_index.
IndexView valid_index(const char* op, const Tensor& crow, const Tensor& col, std::int64_t rows,
                      std::int64_t cols, std::int64_t bm, std::int64_t bn) {
  const BlockShape block = block_of(op, rows, cols, bm, bn);
  validate_index(op, rows, cols, block, span_of(op, "crow", crow), span_of(op, "col", col));
  return index_of_pair(op, crow, col, rows, cols, block);
}

std::int64_t validate(const Tensor& crow, const Tensor& col, std::int64_t rows, std::int64_t cols,
                      std::int64_t bm, std::int64_t bn) {
  return pattern_version(valid_index("validate_index", crow, col, rows, cols, bm, bn));
}

std::int64_t index_digest(const Tensor& crow, const Tensor& col, std::int64_t rows, std::int64_t cols,
                          std::int64_t bm, std::int64_t bn) {
  return facts_of(valid_index("index_digest", crow, col, rows, cols, bm, bn)).digest();
}

void remember(const Tensor& packed, const Tensor& there, std::int64_t blocks, std::int64_t rows,
              std::int64_t cols, std::int64_t bm, std::int64_t bn) {
  constexpr const char* op = "remember_index";
  const BlockShape block = block_of(op, rows, cols, bm, bn);
  const IndexView index = packed_of(op, packed, blocks, rows, cols, block);
  const int device = device_of(op, "there", there);
  if (device < 0)
    core::fail(op, "there on a CUDA device", "the CPU", "leave it out: products on the CPU read the index");
  validate_index(op, rows, cols, block, {index.crow, static_cast<std::size_t>(index.block_rows() + 1)},
                 {index.col, static_cast<std::size_t>(blocks)});
  const IndexView on_device = packed_of(op, there, blocks, rows, cols, block, device, "there");
  remember_index(index, on_device, device);
}

void trust(const Tensor& packed, std::int64_t blocks, std::int64_t rows, std::int64_t cols, std::int64_t bm,
           std::int64_t bn) {
  constexpr const char* op = "trust_index";
  const int device = device_of(op, "index", packed);
  if (device < 0)
    core::fail(op, "an index on a CUDA device", "the CPU",
               "leave it out: products on the CPU read the index");
  take_packed_as_valid(
      op, packed,
      packed_of(op, packed, blocks, rows, cols, block_of(op, rows, cols, bm, bn), device, "index"), device);
}

Tensor packed_index(const Tensor& crow, const Tensor& col, std::int64_t rows, std::int64_t cols,
                    std::int64_t bm, std::int64_t bn) {
  const IndexView index = valid_index("pack_index", crow, col, rows, cols, bm, bn);
  const auto size = index_segments(index.block_rows(), index.block_cols(), index.blocks).size;
  Tensor packed = new_cpu({size}, ScalarType::Int);
  pack_index(index, static_cast<std::int32_t*>(packed.mutable_data_ptr()));
  return packed;
}

Tensor index_to_mask(const Tensor& crow, const Tensor& col, std::int64_t rows, std::int64_t cols,
                     std::int64_t bm, std::int64_t bn) {
  const BlockShape block = block_of("index_to_mask", rows, cols, bm, bn);
  return mask_of(BlockIndex(rows, cols, block, span_of("index_to_mask", "crow", crow),
                            span_of("index_to_mask", "col", col))
                     .pattern());
}

}  // namespace
}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  using namespace sparseloom::binding;
  m.impl("pack", TORCH_BOX(&pack));
  m.impl("unpack", TORCH_BOX(&unpack));
  m.impl("block_scores", TORCH_BOX(&scores));
  m.impl("validate_index", TORCH_BOX(&validate));
  m.impl("index_digest", TORCH_BOX(&index_digest));
  m.impl("remember_index", TORCH_BOX(&remember));
  m.impl("trust_index", TORCH_BOX(&trust));
  m.impl("pack_index", TORCH_BOX(&packed_index));
  m.impl("index_to_mask", TORCH_BOX(&index_to_mask));
}
