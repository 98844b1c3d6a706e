// The operators of sparsifiers.
#include "sparseloom/sparsifiers.h"

#include <string>
#include <utility>
#include <vector>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "registration.h"
#include "scratch.h"
#include "sparseloom/sparsifier_ops.h"

namespace sparseloom::binding {
namespace {

constexpr std::pair<const char*, Selection> kSelections[] = {
    {"keep_all", Selection::keep_all},
    {"random_fraction", Selection::random_fraction},
    {"scalar_threshold", Selection::scalar_threshold},
    {"scalar_fraction", Selection::scalar_fraction},
    {"blockwise_fraction", Selection::blockwise_fraction},
    {"per_block_nm", Selection::per_block_nm},
};

SparsifierSpec spec_of(const char* op, const std::string& selection, double amount, std::int64_t a,
                       std::int64_t b, std::int64_t seed) {
  SparsifierSpec spec;
  std::string names;
  bool known = false;
  for (const auto& [name, which] : kSelections) {
    names += (names.empty() ? "'" : ", '") + std::string(name) + "'";
    if (selection == name) known = true, spec.selection = which;
  }
  if (!known) core::fail(op, "selection " + names, "'" + selection + "'", "pass one of them");
  spec.amount = amount, spec.seed = static_cast<std::uint64_t>(seed);
  if (spec.selection == Selection::blockwise_fraction) spec.block_rows = a, spec.block_cols = b;
  if (spec.selection == Selection::per_block_nm) spec.n = a, spec.m = b;
  return spec;
}

Matrix require_matrix(const char* op, const Tensor& dense) {
  if (dense.dim() != 2)
    core::fail(op, "a matrix [rows, cols]", shape_of(dense), "reshape it to two dimensions");
  return matrix_of(op, "dense", dense);
}

void run(const char* op, const Matrix& matrix, const SparsifierSpec& spec, const SparsifierResult& result,
         int device) {
  const Executor executor = torch_executor(device);
  const Scratch workspace(op, sparsify_workspace(matrix.view, spec, executor), device);
  sparsify(matrix.view, spec, result, workspace.span(), executor);
}

Tensor mask(const Tensor& dense, Text name, double amount, std::int64_t a, std::int64_t b,
            std::int64_t seed) {
  constexpr const char* op = "sparsifier_mask";
  const std::string selection = taken(name);
  const int device = device_of(op, "dense", dense);
  const Matrix matrix = require_matrix(op, dense);
  const Tensor result = new_tensor(op, {matrix.view.rows, matrix.view.cols}, ScalarType::Bool, device);
  run(op, matrix, spec_of(op, selection, amount, a, b, seed),
      {static_cast<bool*>(result.mutable_data_ptr()), nullptr}, device);
  return result;
}

Tensor values(const Tensor& dense, Text name, double amount, std::int64_t a, std::int64_t b,
              std::int64_t seed) {
  constexpr const char* op = "sparsifier_values";
  const std::string selection = taken(name);
  const int device = device_of(op, "dense", dense);
  const Matrix matrix = require_matrix(op, dense);
  const Tensor result = new_like(op, dense, {matrix.view.rows, matrix.view.cols});
  run(op, matrix, spec_of(op, selection, amount, a, b, seed), {nullptr, result.mutable_data_ptr()}, device);
  return result;
}

std::vector<std::int64_t> reads() {
  const SparsifierReads reads = sparsifier_reads();
  return {reads.elements, reads.bytes};
}

}  // namespace
}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  using namespace sparseloom::binding;
  m.impl("sparsifier_mask", TORCH_BOX(&mask));
  m.impl("sparsifier_values", TORCH_BOX(&values));
  m.impl("sparsifier_reads", TORCH_BOX(&reads));
}
