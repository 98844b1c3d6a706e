// Products of block-sparse convolutions: check, plan and launch over the rows of bsr_conv.h.
//
//   const ConvShape shape = conv_shape("conv", images, axes);          // fills in the output's extents
//   const auto problem = describe_conv(index, shape, DType::bf16, Direction::forward);
//   const auto plan = plan_conv(problem, index, executor);
//   conv(*plan, x, index, values, bias, y, workspace, executor);
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "sparseloom/bsr_conv.h"
#include "sparseloom/executor.h"
#include "sparseloom/layout.h"
#include "sparseloom/ops.h"

namespace sparseloom {

/// One axis as a caller gives it; checked by conv_shape.
struct ConvWindow {
  std::int64_t in = 1, kernel = 1, stride = 1, padding = 0, dilation = 1;
};

/// The shape of a convolution over `axes`: one to three, the last of them width. Throws Error unless extents
/// lie in [1, 2^30), kernels, strides and dilations in [1, 2^16), paddings in [0, 2^16), images in [0, 2^31),
/// and the taps fit into the padded extent.
SPARSELOOM_API ConvShape conv_shape(const char* op, std::int64_t images, std::span<const ConvWindow> axes);

/// A problem without an epilogue whose operands begin aligned and are contiguous, so that the bytes of their
/// channels decide whether every row is aligned. The index's arrays are not read. Throws Error for a dtype
/// other than f32, f16 and bf16.
SPARSELOOM_API bsr_conv::Problem describe_conv(const IndexView& index, const ConvShape& shape, DType dtype,
                                               Direction direction);

/// Chooses a row, or returns the cached plan; `kernel` names a row. Throws Error listing every refusal when
/// no row can run, and for a problem that describe_conv would not make, and one that accumulates.
SPARSELOOM_API std::shared_ptr<const ConvPlan> plan_conv(bsr_conv::Problem problem, const IndexView& index,
                                                         const Executor& executor,
                                                         const std::string& kernel = {});

/// The same without an index, for a program that only asks: the problem's facts are used as they are.
SPARSELOOM_API std::shared_ptr<const ConvPlan> plan_conv(bsr_conv::Problem problem, const Executor& executor,
                                                         const std::string& kernel = {});

/// The predicted time of the lent convolution with a dense W, which plans compare with their rows. In 16 bits
/// on the CPU it is assumed to run at the rate of the lent GEMM, which is measured as in rates.h; on a CUDA
/// device the prediction is a fit to cuDNN's times. 0 and 0: without a lent convolution, on the CPU where
/// plans are deterministic, and for fp32 on CUDA unless the problem allows TF32.
SPARSELOOM_API bsr_conv::DenseTime dense_conv_time(const bsr_conv::Problem& problem,
                                                   const Executor& executor);

/// y [out pixels, rows] of x [in pixels, cols], values [blocks][taps][bm, bn], bias [rows] or null and a
/// residual [out pixels, rows] or none; all of the plan's dtype. A pass over y does what the kernel's
/// epilogue does not support. workspace: plan.workspace_bytes, aligned to 64 bytes (256 on CUDA). If the plan
/// is `dense` and the lent convolution keeps its result in memory of its own (DenseConv::out), the result is
/// there and y is left unwritten. Throws Error if a shape, dtype, stride or alignment is not the plan's, an
/// operand is null, or the kernel could not be queued.
SPARSELOOM_API void conv(const ConvPlan& plan, const ConstMatrixView& x, const IndexView& index,
                         const void* values, const Addends& addends, const MatrixView& y,
                         std::span<std::byte> workspace, const Executor& executor);

/// dx [in pixels, cols] of dy [out pixels, rows]; as forward of a transposed convolution with a bias [cols],
/// an activation (in the plan) and a residual [in pixels, cols]. Workspace and errors as conv.
SPARSELOOM_API void conv_dx(const ConvPlan& plan, const ConstMatrixView& dy, const IndexView& index,
                            const TransposedView& transposed, const void* values, const Addends& addends,
                            const MatrixView& dx, std::span<std::byte> workspace, const Executor& executor);
/// The same without addends.
SPARSELOOM_API void conv_dx(const ConvPlan& plan, const ConstMatrixView& dy, const IndexView& index,
                            const TransposedView& transposed, const void* values, const MatrixView& dx,
                            std::span<std::byte> workspace, const Executor& executor);

/// dvalues [blocks][taps][bm, bn] of dy [out pixels, rows] and x [in pixels, cols]; padding becomes zero.
/// Workspace and errors as conv.
SPARSELOOM_API void conv_dw(const ConvPlan& plan, const ConstMatrixView& dy, const ConstMatrixView& x,
                            const IndexView& index, void* dvalues, std::span<std::byte> workspace,
                            const Executor& executor);

/// values [blocks][taps][bm, bn] <- the blocks of dense [rows, taps * cols], W in channels-last memory, with
/// zeros as padding; bit by bit, on the executor's device. Throws Error where a shape is another, for taps
/// below 1, null pointers, elements of 8 bits on CUDA, and where the kernel could not be queued.
SPARSELOOM_API void conv_pack(const ConstMatrixView& dense, const IndexView& index, std::int64_t taps,
                              void* values, const Executor& executor);

/// The other way: dense <- values at their places, zero elsewhere. Errors as conv_pack.
SPARSELOOM_API void conv_unpack(const IndexView& index, std::int64_t taps, const void* values,
                                const MatrixView& dense, const Executor& executor);

}  // namespace sparseloom
