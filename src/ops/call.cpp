// The checks and arguments that the calls of both verbs share.
#include "ops/call.h"

#include <algorithm>
#include <string>

#include "core/check.h"
#include "ops/valid_index.h"

namespace sparseloom::ops {

void check_matrix(const char* op, const char* name, const ConstMatrixView& matrix, std::int64_t rows,
                  std::int64_t cols, DType dtype) {
  if (matrix.rows != rows || matrix.cols != cols)
    core::fail(op, std::string(name) + " of shape " + core::shape(rows, cols),
               core::shape(matrix.rows, matrix.cols), "pass the matrix that the plan was made for");
  if (matrix.dtype != dtype)
    core::fail(op, std::string(name) + " of dtype " + name_of(dtype), name_of(matrix.dtype),
               "convert it, or plan for its dtype");
  if (matrix.rows > 1 && matrix.stride < matrix.cols)
    core::fail(op, std::string(name) + " with row stride >= " + std::to_string(matrix.cols),
               std::to_string(matrix.stride), "pass the number of elements between two rows");
  if (matrix.data == nullptr && rows > 0 && cols > 0)
    core::fail(op, std::string("memory behind ") + name, "null", "pass its data");
}

void check_call(const char* op, const CommonProblem& p, const Choice& plan, const IndexView& index,
                std::span<std::byte> workspace, const Executor& executor) {
  if (p.rows != index.rows || p.cols != index.cols || !(p.block == index.block) || p.blocks != index.blocks)
    core::fail(op,
               "the index the plan was made for: " + core::shape(p.rows, p.cols) + ", " +
                   std::to_string(p.blocks) + " blocks",
               core::shape(index.rows, index.cols) + ", " + std::to_string(index.blocks) + " blocks",
               "make a plan for this index");
  core::require_memory(op, {{"crow", index.crow, index.rows > 0}, {"col", index.col, index.blocks > 0}});
  if (p.device != executor.device)
    core::fail(op, "an executor on " + place(p.device) + ", as planned", place(executor.device),
               "make the plan with the executor of the call");
  const std::size_t alignment = p.device >= 0 ? 256 : 64;  // alignment of cudaMalloc, and a cache line
  if (!lends(workspace, plan.workspace_bytes, alignment))
    core::fail(
        op,
        std::to_string(plan.workspace_bytes) + " bytes of workspace, aligned to " + std::to_string(alignment),
        std::to_string(workspace.size()) + " bytes at offset " +
            std::to_string(reinterpret_cast<std::uintptr_t>(workspace.data()) % alignment),
        "lend plan.workspace_bytes from an aligned allocation");
}

void check_values(const char* op, const char* name, const CommonProblem& p, const void* values) {
  core::require_memory(op, {{name, values, p.blocks > 0}});
}

void check_transposed(const char* op, const CommonProblem& p, const IndexView& index,
                      const TransposedView& transposed) {
  const bool stored = p.blocks > 0;
  core::require_memory(
      op, {{"ccol", transposed.ccol}, {"row", transposed.row, stored}, {"slot", transposed.slot, stored}});
  if (p.device < 0) require_valid(op, index, transposed);
}

void check_bias(const char* op, const CommonProblem& p, const void* bias) {
  if ((bias != nullptr) != p.bias)
    core::fail(op, p.bias ? "a bias, as planned" : "no bias, as planned", bias ? "one" : "none",
               "plan for what the call passes");
}

void check_aligned(const char* op, const Choice& plan, bsr_linear::Aligned needs, const void* values,
                   std::initializer_list<ConstMatrixView> read,
                   std::initializer_list<ConstMatrixView> written) {
  using bsr_linear::Aligned;
  const auto all = [](std::initializer_list<ConstMatrixView> matrices) {
    return std::all_of(matrices.begin(), matrices.end(),
                       [](const ConstMatrixView& matrix) { return is_aligned(matrix); });
  };
  const bool fits = needs == Aligned::none ||
                    (is_aligned(values) && all(read) && (needs == Aligned::inputs || all(written)));
  if (!fits)
    core::fail(
        op, "operands whose base and rows lie at multiples of 16 bytes, as planned for " + plan.kernel_name,
        "one that does not", "set Problem::aligned or out_aligned to false before make_plan, or align it");
}

std::int64_t row_distance(const ConstMatrixView& matrix) {
  return matrix.rows > 1 ? matrix.stride : core::round_up(matrix.cols, std::int64_t{16});
}

MatmulArgs arguments(const CommonProblem& p, const IndexView& index, const ConstMatrixView& a,
                     std::span<std::byte> workspace, const Executor& executor) {
  MatmulArgs args;
  args.dtype = p.dtype;
  args.activation = p.activation;
  args.m = p.m;
  args.a = a.data;
  args.a_stride = row_distance(a);
  args.index = index;
  args.workspace = workspace.data();
  args.device = executor.device;
  args.stream = executor.stream;
  return args;
}

}  // namespace sparseloom::ops
