// The operators of sparsifiers.
#include "sparseloom/sparsifiers.h"

#include <string>
#include <utility>
#include <vector>

#include "convert.h"
#include "core/check.h"
#include "executor.h"

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

Matrix matrix_on_cpu(const char* op, const Tensor& dense) {
  require_cpu(op, "dense", dense);
  if (dense.dim() != 2)
    core::fail(op, "a matrix [rows, cols]", shape_of(dense), "reshape it to two dimensions");
  return matrix_of(op, "dense", dense);
}

Tensor mask(const Tensor& dense, std::string selection, double amount, std::int64_t a, std::int64_t b,
            std::int64_t seed) {
  constexpr const char* op = "sparsifier_mask";
  const Matrix matrix = matrix_on_cpu(op, dense);
  const Tensor result = new_cpu({matrix.view.rows, matrix.view.cols}, ScalarType::Bool);
  sparsify(matrix.view, spec_of(op, selection, amount, a, b, seed),
           {static_cast<bool*>(result.mutable_data_ptr()), nullptr}, torch_executor());
  return result;
}

Tensor values(const Tensor& dense, std::string selection, double amount, std::int64_t a, std::int64_t b,
              std::int64_t seed) {
  constexpr const char* op = "sparsifier_values";
  const Matrix matrix = matrix_on_cpu(op, dense);
  const Tensor result = new_like(op, dense, {matrix.view.rows, matrix.view.cols});
  sparsify(matrix.view, spec_of(op, selection, amount, a, b, seed), {nullptr, result.mutable_data_ptr()},
           torch_executor());
  return result;
}

std::vector<std::int64_t> reads() {
  const SparsifierReads reads = sparsifier_reads();
  return {reads.elements, reads.bytes};
}

}  // namespace
}  // namespace sparseloom::binding

STABLE_TORCH_LIBRARY_IMPL(sparseloom, CompositeExplicitAutograd, m) {
  using namespace sparseloom::binding;
  m.impl("sparsifier_mask", TORCH_BOX(&mask));
  m.impl("sparsifier_values", TORCH_BOX(&values));
  m.impl("sparsifier_reads", TORCH_BOX(&reads));
}
