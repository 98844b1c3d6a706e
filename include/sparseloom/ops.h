// Plan once, run many: the three products of a block-sparse linear layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sparseloom/executor.h"
#include "sparseloom/export.h"
#include "sparseloom/layout.h"
#include "sparseloom/plan.h"

namespace sparseloom {

/// Decides for this problem and pattern, or returns the cached decision (key: version and problem). Host
/// only; costs microseconds when cached. `kernel`: force a candidate by name (tests, benchmarks). Throws
/// Error when no candidate can run, with every refusal, and on a device without kernels. With a CUDA executor
/// the index arrays lie on the device and are not looked at: validate them on the host before
/// (pattern_version gives the version), and remember_index lets the plan order their rows. Of kDynamicVersion
/// the plan holds nothing of the pattern.
SPARSELOOM_API std::shared_ptr<const Plan> make_plan(const Problem& problem, const IndexView& index,
                                                     std::int64_t version, const Executor& executor,
                                                     const std::string& kernel = {});

/// Copies a valid index, on the host, for plans on CUDA devices, which look it up by version
/// (pattern_version's): block rows or columns that read the same parts of the dense operand are then
/// multiplied together, up to a quarter faster. The bits of a product do not depend on it. Keeps 64 MB of
/// indices, the latest. Does nothing in a build without CUDA kernels.
SPARSELOOM_API void remember_index(std::int64_t version, const IndexView& index);

/// A problem of m tokens with this index; add bias, activation or strict before planning.
SPARSELOOM_API Problem describe(const IndexView& index, DType dtype, Direction direction, std::int64_t m);

/// The same for a matrix of one's own.
SPARSELOOM_API Problem describe(const BsrMatrix& w, Direction direction, std::int64_t m);
SPARSELOOM_API std::shared_ptr<const Plan> make_plan(const Problem& problem, const BsrMatrix& w,
                                                     const Executor& executor,
                                                     const std::string& kernel = {});

/// Names of all compiled-in candidates, in registry order; `reference` is last.
SPARSELOOM_API std::vector<std::string> kernel_names();

/// What a forward product adds: bias [rows], contiguous, before the activation, and behind it residual [m,
/// rows], which must not overlap y. Null and without memory: nothing. As the problem said; a bias alone
/// converts.
struct Addends {
  const void* bias = nullptr;
  ConstMatrixView residual = {};
  Addends() = default;
  Addends(const void* given_bias) : bias(given_bias) {}  // NOLINT: a bias is what most calls have
  Addends(const void* given_bias, const ConstMatrixView& given_residual)
      : bias(given_bias), residual(given_residual) {}
};

/// Y = act(X W^T + bias) + residual, added in fp32 before the one rounding (the `dense` plan rounds the
/// product before). x [m, cols], y [m, rows], values [blocks, bm, bn], all of the plan's dtype. workspace: at
/// least plan.workspace_bytes, 64-byte aligned. Allocates nothing. Throws Error when a shape, dtype, stride
/// or the workspace does not fit the plan. A NaN in x under an absent block does not reach y unless the plan
/// is `dense`.
SPARSELOOM_API void linear(const Plan& plan, const ConstMatrixView& x, const IndexView& index,
                           const void* values, const Addends& addends, const MatrixView& y,
                           std::span<std::byte> workspace, const Executor& executor);

/// Factors of an 8-bit product, fp32, on the device of x: one for all of it, or one for each token (x) or
/// output feature (w). Neither may be empty (x's may when there is no token). Zero, Inf and NaN are
/// multiplied as IEEE 754 says.
struct Scales {
  std::span<const float> x;  // [1] or [m]
  std::span<const float> w;  // [1] or [rows]
};

/// The 8-bit product: y[t, o] = act(scales.x[t] scales.w[o] sum_i x[t, i] W[o, i] + bias[o]); kernels/args.h
/// fixes the order of the roundings. x and values of the plan's dtype (i8 or f8e4m3), y and bias of
/// plan.problem.out. Throws as above.
SPARSELOOM_API void linear(const Plan& plan, const ConstMatrixView& x, const IndexView& index,
                           const void* values, const Scales& scales, const void* bias, const MatrixView& y,
                           std::span<std::byte> workspace, const Executor& executor);

/// dX = dY W. dy [m, rows], dx [m, cols].
SPARSELOOM_API void linear_dx(const Plan& plan, const ConstMatrixView& dy, const IndexView& index,
                              const TransposedView& transposed, const void* values, const MatrixView& dx,
                              std::span<std::byte> workspace, const Executor& executor);

/// dvalues = (dY^T X) at the stored blocks, padding zero. dy [m, rows], x [m, cols], dvalues [blocks, bm,
/// bn]. A plan with problem.accumulate adds to dvalues, which are f32 then, whatever dy and x are: the
/// unrounded fp32 sums, nothing to padding.
SPARSELOOM_API void linear_dw(const Plan& plan, const ConstMatrixView& dy, const ConstMatrixView& x,
                              const IndexView& index, void* dvalues, std::span<std::byte> workspace,
                              const Executor& executor);

/// pack and unpack (layout.h) on the executor's device: the memory behind dense, index and values lies there.
/// On a CUDA device queued, not waited for. Throw Error when shapes differ, or when the device has no
/// kernels.
SPARSELOOM_API void pack(const ConstMatrixView& dense, const IndexView& index, void* values,
                         const Executor& executor);
SPARSELOOM_API void unpack(const IndexView& index, const void* values, const MatrixView& dense,
                           const Executor& executor);

/// set_topology (layout.h) where the tables and the mask lie, of fewer than 2^28 cells. `workspace`:
/// set_topology_workspace bytes, 0 on the CPU and for grids of up to some 600 x 600 blocks. On a CUDA device
/// one launch, queued and not waited for, which a graph may capture: every replay takes the mask as it is
/// then. Throws Error when a size does not fit or the device has no kernels.
SPARSELOOM_API std::size_t set_topology_workspace(const TopologyTables& tables, const Executor& executor);
SPARSELOOM_API void set_topology(const std::uint8_t* mask, const TopologyTables& tables,
                                 std::span<std::byte> workspace, const Executor& executor);

/// values[slot] <- values[moved[slot]], zero where moved names none of the moved.size() blocks of
/// `block_bytes` each: values and optimizer state after set_topology. `workspace`: as many bytes as values.
/// Place and errors as above.
SPARSELOOM_API void move_blocks(void* values, std::int64_t block_bytes, std::span<const std::int32_t> moved,
                                std::span<std::byte> workspace, const Executor& executor);

/// The three products of a matrix of one's own, on the CPU. dw must have w's pattern and dtype (f32 where the
/// plan accumulates), else Error; its padding becomes zero.
SPARSELOOM_API void linear(const Plan& plan, const ConstMatrixView& x, const BsrMatrix& w,
                           const Addends& addends, const MatrixView& y, Workspace& workspace,
                           const Executor& executor);
SPARSELOOM_API void linear(const Plan& plan, const ConstMatrixView& x, const BsrMatrix& w,
                           const Scales& scales, const void* bias, const MatrixView& y, Workspace& workspace,
                           const Executor& executor);
SPARSELOOM_API void linear_dx(const Plan& plan, const ConstMatrixView& dy, const BsrMatrix& w,
                              const MatrixView& dx, Workspace& workspace, const Executor& executor);
SPARSELOOM_API void linear_dw(const Plan& plan, const ConstMatrixView& dy, const ConstMatrixView& x,
                              BsrMatrix& dw, Workspace& workspace, const Executor& executor);

/// Machine and build as JSON: version, compiler, ISA found and in force, kernels compiled in, why a part is
/// missing.
SPARSELOOM_API std::string info_json();

}  // namespace sparseloom
