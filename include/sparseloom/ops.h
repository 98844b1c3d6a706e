// The three products of a block-sparse linear layer (plan once, run many times), and the copies and topology
// changes on the executor's device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sparseloom/bsr_linear.h"
#include "sparseloom/executor.h"
#include "sparseloom/export.h"
#include "sparseloom/layout.h"
#include "sparseloom/plan.h"
#include "sparseloom/topology.h"

namespace sparseloom {

/// Chooses a kernel for this problem, or returns the cached plan (key: the problem and `kernel`). It runs on
/// the host only; a cached plan costs microseconds. `kernel` forces a candidate by name (for tests and
/// benchmarks). Throws Error listing every refusal when no candidate can run, and when the device has no
/// kernels. On the CPU it validates an index that it has not seen before. With a CUDA executor the index
/// arrays lie on the device, and make_plan does not read them: validate them on the host before, and set
/// problem.facts from facts_of. A problem without facts is planned as one with even block rows.
SPARSELOOM_API std::shared_ptr<const Plan> make_plan(const Problem& problem, const IndexView& index,
                                                     const Executor& executor,
                                                     const std::string& kernel = {});
SPARSELOOM_API std::shared_ptr<const ScaledPlan> make_plan(const ScaledProblem& problem,
                                                           const IndexView& index, const Executor& executor,
                                                           const std::string& kernel = {});

/// Gives products on CUDA device `device` the content of the index at the addresses of `on_device`: `host`, a
/// valid index of the same pattern in host memory, which is copied. Block rows or block columns that read the
/// same parts of the dense operand are then multiplied together, which was measured faster on random
/// patterns. It is a hint: the bits of a product do not depend on it, nor does the choice of the kernel. The
/// latest 64 MB of indices are kept. Does nothing in a build without CUDA kernels.
SPARSELOOM_API void remember_index(const IndexView& host, const IndexView& on_device, int device);

/// A problem of m tokens with this index, whose arrays are not read, and of matrices without gaps between
/// their rows. Set facts (facts_of), bias, activation, strict and the other fields before planning. The
/// second function sets the facts.
SPARSELOOM_API Problem describe(const IndexView& index, DType dtype, Direction direction, std::int64_t m);

SPARSELOOM_API Problem describe(const BsrMatrix& w, Direction direction, std::int64_t m);

/// The same for an 8-bit product that writes `out` (bf16 or f32).
SPARSELOOM_API ScaledProblem describe_scaled(const IndexView& index, DType dtype, DType out, std::int64_t m);
SPARSELOOM_API ScaledProblem describe_scaled(const BsrMatrix& w, DType out, std::int64_t m);

/// make_plan for a BsrMatrix. Throws Error on a CUDA executor.
SPARSELOOM_API std::shared_ptr<const Plan> make_plan(const Problem& problem, const BsrMatrix& w,
                                                     const Executor& executor,
                                                     const std::string& kernel = {});

SPARSELOOM_API std::shared_ptr<const ScaledPlan> make_plan(const ScaledProblem& problem, const BsrMatrix& w,
                                                           const Executor& executor,
                                                           const std::string& kernel = {});

/// Names of all kernels in registry order: those of this build, the last of which is `reference`, and those
/// from outside (extension.h).
SPARSELOOM_API std::vector<std::string> kernel_names();

/// The addends of a forward product: bias [rows], contiguous, before the activation, and residual [m, rows]
/// after it; the residual must not overlap y. A null bias, or a residual with null data, adds nothing. Both
/// must be given or omitted as in the problem. A plain bias pointer converts to Addends.
struct Addends {
  const void* bias = nullptr;
  ConstMatrixView residual = {};
  Addends() = default;
  Addends(const void* given_bias) : bias(given_bias) {}  // NOLINT: most calls have a bias
  Addends(const void* given_bias, const ConstMatrixView& given_residual)
      : bias(given_bias), residual(given_residual) {}
};

/// Y = act(X W^T + bias) + residual, added in fp32 before the one rounding (a `dense` plan also rounds the
/// product itself). x [m, cols], y [m, rows], values [blocks, bm, bn], all of the plan's dtype. workspace: at
/// least plan.workspace_bytes, aligned to 64 bytes on the CPU and 256 on CUDA. Allocates nothing. Throws
/// Error when a shape, dtype or stride or the workspace does not fit the plan, and for null operands. It does
/// not read the index's entries, which must be valid: make_plan on the CPU and validate_index check them. A
/// NaN in x under an absent block does not reach y, unless plan.caveat says otherwise (a `dense` plan, for
/// one).
SPARSELOOM_API void linear(const Plan& plan, const ConstMatrixView& x, const IndexView& index,
                           const void* values, const Addends& addends, const MatrixView& y,
                           std::span<std::byte> workspace, const Executor& executor);

/// One weight of a gated linear unit, and its bias [rows] or null.
struct GluWeight {
  IndexView index;
  const void* values = nullptr;
  const void* bias = nullptr;
};

/// A gated linear unit (Shazeer 2020) in one kernel: Y = act(round(X W^T + bias)) * round(X V^T + bias), with
/// W the gates and V the factors. Both are [rows, cols] in blocks of the same sides, x [m, cols], y [m,
/// rows], all of the plan's dtype; the plan is one with problem.glu, and both weights have a bias or neither.
/// Workspace and errors as linear.
SPARSELOOM_API void linear_glu(const Plan& plan, const ConstMatrixView& x, const GluWeight& gates,
                               const GluWeight& factors, const MatrixView& y, std::span<std::byte> workspace,
                               const Executor& executor);

/// Scales of an 8-bit product, fp32, on the device of x: one for the whole operand, or one for each token (x)
/// or output feature (w). Neither may be empty, except x's when there are no tokens. Zero, Inf and NaN are
/// multiplied by the rules of IEEE 754.
struct Scales {
  std::span<const float> x;  // [1] or [m]
  std::span<const float> w;  // [1] or [rows]
};

/// The 8-bit product: y[t, o] = act(scales.x[t] scales.w[o] sum_i x[t, i] W[o, i] + bias[o]);
/// matmul_args.h fixes the order of the roundings. x [m, cols] and values [blocks, bm, bn] are of the
/// plan's dtype (i8 or f8e4m3), y [m, rows] and bias [rows] (or null) of plan.problem.out. Throws Error as
/// linear above does.
SPARSELOOM_API void linear(const ScaledPlan& plan, const ConstMatrixView& x, const IndexView& index,
                           const void* values, const Scales& scales, const void* bias, const MatrixView& y,
                           std::span<std::byte> workspace, const Executor& executor);

/// dX = dY W. dy [m, rows], dx [m, cols], values [blocks, bm, bn], all of the plan's dtype. Workspace and
/// errors as linear.
SPARSELOOM_API void linear_dx(const Plan& plan, const ConstMatrixView& dy, const IndexView& index,
                              const TransposedView& transposed, const void* values, const MatrixView& dx,
                              std::span<std::byte> workspace, const Executor& executor);

/// dvalues = (dY^T X) at the stored blocks; padding becomes zero. dy [m, rows], x [m, cols], dvalues [blocks,
/// bm, bn], all of the plan's dtype. A plan with problem.accumulate adds the fp32 sums, unrounded, to
/// dvalues, which are then f32 whatever dtype dy and x have; it adds nothing to padding. Workspace and errors
/// as linear.
SPARSELOOM_API void linear_dw(const Plan& plan, const ConstMatrixView& dy, const ConstMatrixView& x,
                              const IndexView& index, void* dvalues, std::span<std::byte> workspace,
                              const Executor& executor);

/// pack and unpack (layout.h) on the executor's device, which has the memory of dense, index and values.
/// On a CUDA device the copy is queued on the stream and not waited for. Throw Error when shapes differ, when
/// the dtype is 8-bit on a CUDA device, or when the device has no kernels.
SPARSELOOM_API void pack(const ConstMatrixView& dense, const IndexView& index, void* values,
                         const Executor& executor);
SPARSELOOM_API void unpack(const IndexView& index, const void* values, const MatrixView& dense,
                           const Executor& executor);

/// set_topology (layout.h) on the executor's device, where the tables and the mask lie; the grid must have
/// fewer than 2^28 cells. `workspace`: set_topology_workspace bytes, aligned to 16 (none on the CPU, and none
/// for grids of up to about 600 x 600 blocks). On a CUDA device this is one launch, queued and not waited
/// for. A CUDA graph may capture it: every replay reads the mask as it is at that time. Throws Error when a
/// size does not fit or the device has no kernels.
SPARSELOOM_API std::size_t set_topology_workspace(const TopologyTables& tables, const Executor& executor);
SPARSELOOM_API void set_topology(const std::uint8_t* mask, const TopologyTables& tables,
                                 std::span<std::byte> workspace, const Executor& executor);

/// values[slot] <- values[moved[slot]], or zero where moved[slot] is not in [0, moved.size()); where it is
/// kSlotStaysFree, values[slot] stays. Call it after set_topology or update_topology for values and optimizer
/// state. `block_bytes`: bytes of one block. `workspace`: as many bytes
/// as values, aligned to 16. Device and errors as set_topology.
SPARSELOOM_API void move_blocks(void* values, std::int64_t block_bytes, std::span<const std::int32_t> moved,
                                std::span<std::byte> workspace, const Executor& executor);

/// update_topology and choose_blocks (topology.h) on the executor's device, where all arrays lie. Workspace
/// and device of the first are as for set_topology; the second needs none. On a CUDA device each is one
/// launch, queued and not waited for, which a CUDA graph may capture. Throw Error when a size does not fit or
/// the device has no kernels.
SPARSELOOM_API void update_topology(const std::uint8_t* mask, const TopologyTables& tables,
                                    std::int32_t* flags, std::span<std::byte> workspace,
                                    const Executor& executor);
SPARSELOOM_API void choose_blocks(const BlockChoice& choice, std::uint8_t* mask, std::int32_t* flags,
                                  const Executor& executor);

/// blocks[crow_end ..] <- 0: the free slots of `capacity` blocks of block_bytes each, where *crow_end, on the
/// executor's device, is crow[block_rows]. Device and errors as choose_blocks.
SPARSELOOM_API void clear_free_blocks(void* blocks, std::int64_t block_bytes, const std::int32_t* crow_end,
                                      std::int64_t capacity, const Executor& executor);

/// The products of a BsrMatrix, on the CPU. dw has a pattern of the plan's shape and number of blocks, at
/// which the gradient is computed, and the plan's dtype (f32 where the plan accumulates); its padding becomes
/// zero. Throws Error otherwise, and on a CUDA executor.
SPARSELOOM_API void linear(const Plan& plan, const ConstMatrixView& x, const BsrMatrix& w,
                           const Addends& addends, const MatrixView& y, Workspace& workspace,
                           const Executor& executor);
SPARSELOOM_API void linear(const ScaledPlan& plan, const ConstMatrixView& x, const BsrMatrix& w,
                           const Scales& scales, const void* bias, const MatrixView& y, Workspace& workspace,
                           const Executor& executor);
SPARSELOOM_API void linear_dx(const Plan& plan, const ConstMatrixView& dy, const BsrMatrix& w,
                              const MatrixView& dx, Workspace& workspace, const Executor& executor);
SPARSELOOM_API void linear_dw(const Plan& plan, const ConstMatrixView& dy, const ConstMatrixView& x,
                              BsrMatrix& dw, Workspace& workspace, const Executor& executor);

/// Machine and build as JSON: version, compiler, ISA found and in force, rates, kernels compiled in, and the
/// reason for a missing part.
SPARSELOOM_API std::string info_json();

}  // namespace sparseloom
