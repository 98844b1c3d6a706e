// The checks of the verbs of LinearOf, whatever the layout.
#include "sparseloom/linear_of.h"

#include "core/check.h"
#include "ops/checks.h"

namespace sparseloom {

void require_linear_problem(const char* verb, const LinearProblem& p) {
  ops::require_known(verb, p.direction, p.dtype, p.activation);
  ops::require_sizes(verb, p.m, p.rows, p.cols);
  constexpr std::int64_t kMostStored = std::int64_t{1} << 56;  // whose bytes are counted, times threads too
  if (p.stored < 0 || p.stored > kMostStored)
    core::fail(verb, "0 to 2^56 stored elements", std::to_string(p.stored), "describe the problem by a view");
  if (p.direction != Direction::forward && (p.bias || p.residual || p.activation != Activation::none))
    core::fail(verb, "bias, activation and residual on forward only", name_of(p.direction),
               "apply them in the forward product");
}

void require_linear_call(const char* verb, const LinearProblem& p, std::size_t workspace_bytes,
                         const MatmulArgs& product, std::span<std::byte> workspace,
                         const Executor& executor) {
  const bool dw = p.direction == Direction::dw, forward = p.direction == Direction::forward;
  const std::int64_t depth = forward ? p.cols : p.rows, outputs = forward ? p.rows : p.cols;
  core::require_memory(verb, {{"a", product.a, p.m > 0 && depth > 0},
                              {"b", product.b, dw && p.m > 0 && p.cols > 0},
                              {"values", product.values, !dw && p.stored > 0},
                              {"out", product.out, dw ? p.stored > 0 : p.m > 0 && outputs > 0}});
  const auto check_stride = [&](const char* name, std::int64_t stride, std::int64_t elements) {
    if (p.m > 1 && stride < elements)
      core::fail(verb, std::string("rows of ") + name + " at least " + std::to_string(elements) + " apart",
                 std::to_string(stride), "pass the number of elements between two rows");
  };
  check_stride("a", product.a_stride, depth);
  if (dw) check_stride("b", product.b_stride, p.cols);
  if (!dw) check_stride("out", product.out_stride, outputs);
  if (p.residual) check_stride("residual", product.residual_stride, outputs);
  if (product.accumulate && (!dw || p.dtype == DType::f64))
    core::fail(verb, "accumulate, into fp32, on dw of f32, f16 or bf16 only",
               std::string(name_of(p.direction)) + " of " + name_of(p.dtype),
               "add the product in a pass of your own");
  if (p.device != executor.device)
    core::fail(verb, "an executor on " + ops::place(p.device) + ", as planned", ops::place(executor.device),
               "make the plan with the executor of the call");
  ops::require_lent(verb, p.can_gemm, "GEMM", executor.gemm != nullptr);
  const std::size_t alignment = p.device >= 0 ? 256 : 64;  // cudaMalloc's alignment, and a cache line
  const std::size_t offset = reinterpret_cast<std::uintptr_t>(workspace.data()) % alignment;
  if (workspace_bytes > 0 && !ops::lends(workspace, workspace_bytes, alignment))
    core::fail(
        verb,
        std::to_string(workspace_bytes) + " bytes of workspace, aligned to " + std::to_string(alignment),
        std::to_string(workspace.size()) + " bytes at offset " + std::to_string(offset),
        "lend plan.workspace_bytes from an aligned allocation");
}

}  // namespace sparseloom
