#include "sparseloom/quantize.h"

#include "core/check.h"
#include "kernels/shared/cpu/round_rows.h"
#include "ops/checks.h"

namespace sparseloom {

void quantize_rows(const ConstMatrixView& x, const float* given, const QuantizedRows& out,
                   const Executor& executor) {
  constexpr const char* op = "quantize_rows";
  if (x.dtype != DType::f32 && x.dtype != DType::f16 && x.dtype != DType::bf16)
    core::fail(op, "x of f32, f16 or bf16", name_of(x.dtype), "convert it with .float()");
  if (executor.device >= 0)
    core::fail(op, "x on the CPU", "a CUDA device", "divide and round by the framework's own operators");
  ops::require_matrix(op, x);
  if (x.rows == 0) return;
  if (x.cols > 0) core::require_memory(op, {{"values", out.values}});
  if (given == nullptr) core::require_memory(op, {{"scale", out.scale}});
  kernels::cpu::round_rows({x, given, out}, executor);
}

}  // namespace sparseloom
