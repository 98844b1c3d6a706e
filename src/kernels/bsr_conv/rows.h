// The rows of this library for the verb bsr_conv: CUDA's, the CPU's, and the lent convolution.
// bsr_linear/cuda/rows.h has the contract of launches of CUDA rows. And the weight of a convolution between
// blocks and dense channels-last memory [rows, taps * cols].
#pragma once

#include <span>

#include "plan/machine.h"
#include "sparseloom/bsr_conv.h"
#include "sparseloom/executor.h"
#include "sparseloom/layout.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom::kernels {

using ConvRow = Row<bsr_conv::Conv>;

/// In order of preference at equal predictions. Empty in a build without CUDA.
std::span<const ConvRow> conv_cuda_rows();

namespace cuda::conv_rows {

/// The first refusals of every row here: there must be pixels and channels, and 31 bits must count the
/// pixels.
Refusal refuse(const bsr_conv::Problem& problem);

ConvRow sm90_wgmma();
ConvRow sm90_wgmma_narrow();
ConvRow sm80_mma();

}  // namespace cuda::conv_rows

/// In order of preference at equal predictions. Empty on other machines than x86-64.
std::span<const ConvRow> conv_cpu_rows();

/// The row `dense`, for the CPU and CUDA devices: Executor::conv with a dense copy of W.
ConvRow dense_conv_row();

/// Whether torch's weight gradient may write past its memory, so that it is neither called nor measured:
/// oneDNN's does for volumes of fp32 on CPUs with AVX-512 (torch 2.11). In every case that was seen
/// the taps reach beyond the depth, which is padded by more than would keep it.
bool dense_conv_may_overrun(const bsr_conv::Problem& problem);

/// The predicted time of a lent convolution. It is assumed to be torch's: cuDNN on a CUDA device; on the CPU
/// it runs at machine.rates.gemm_flops, measured of it in fp32 and of the lent GEMM in 16 bits, or else at a
/// fraction of the FMA peak. 0 and 0 if it is unknown: for fp32 on CUDA unless the problem allows TF32.
bsr_conv::DenseTime dense_conv_time(const bsr_conv::Problem& problem, const plan::Machine& machine);

/// values [blocks][taps][bm, bn] <- the blocks of `dense`, with zeros as padding, bit by bit; on the
/// executor's threads, or queued on its stream. Returns 0 or a cudaError_t.
int pack_conv(const ConstMatrixView& dense, const IndexView& index, std::int64_t taps, void* values,
              const Executor& executor);

/// The other way: dense <- values at their places, zero elsewhere.
int unpack_conv(const IndexView& index, std::int64_t taps, const void* values, const MatrixView& dense,
                const Executor& executor);

}  // namespace sparseloom::kernels
