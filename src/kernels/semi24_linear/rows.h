// The rows of this library for the verbs semi24_linear and semi24_scaled_linear, the CPU's and CUDA's. Each
// CUDA row is in row.cpp of its method's folder, beside the kernel: its refusals, predicted time and launch.
//
// A launch needs Semi24View::metadata, and returns a cudaError_t if it is missing. All entries are
// asynchronous, allocate nothing and may be captured in a CUDA graph.
#pragma once

#include <span>

#include "kernels/semi24_linear/product.h"
#include "kernels/shared/cost/cost_terms.h"
#include "plan/machine.h"
#include "sparseloom/scaled_of.h"
#include "sparseloom/semi24_linear.h"

namespace sparseloom::kernels {

using Semi24Row = Row<Semi24Linear>;
using Semi24ScaledRow = Row<Semi24Scaled>;

/// In order of preference at equal predictions. LinearOf adds `dense` and `reference` after them. Empty on
/// other machines than x86-64.
std::span<const Semi24Row> semi24_cpu_rows();

/// All rows of the CPU, `reference` among them.
std::span<const Semi24ScaledRow> semi24_scaled_cpu_rows();

/// In order of preference at equal predictions. Empty in a build without CUDA.
std::span<const Row<Semi24Linear>> semi24_cuda_rows();
std::span<const Row<Semi24Scaled>> semi24_scaled_cuda_rows();

namespace cuda::semi24_rows {

/// The first refusals of every row here: forward of 16-bit operands, or of 8-bit ones, with nonempty
/// products.
Refusal refuse(const LinearProblem& problem);
Refusal refuse(const ScaledLinearProblem& problem);
/// The further refusals of rows on TMA, which run on compute capability 9.0 only.
Refusal refuse_on_hopper(const LinearProblem& problem, const plan::Machine& machine);

/// Bytes that a product moves: values, metadata, tokens and outputs.
double bytes_of(const LinearProblem& problem);
double bytes_of(const ScaledLinearProblem& problem);
/// Columns of W whose stored values are 128 bytes.
constexpr int k_tile_of(const LinearProblem& problem) {
  return 256 / static_cast<int>(size_of(problem.dtype));
}
constexpr double tiles_of(std::int64_t size, int tile) {
  return static_cast<double>((size + tile - 1) / tile);
}

/// Calls entry(product) on the product's device.
template <class Entry>
int launch_on_device(const Semi24Linear::Args& args, Entry entry) {
  if (args.view.metadata == nullptr) return 1;  // cudaErrorInvalidValue
  const runtime::CudaDeviceScope scope(args.product.device);
  return entry(Semi24Product{args.product, args.view.rows, args.view.cols, args.view.metadata});
}

Row<Semi24Linear> sm90_wgmma();
Row<Semi24Linear> sm90_decode();
Row<Semi24Linear> sm90_dx();
Row<Semi24Linear> sm80_mma();
Row<Semi24Linear> sm80_ffma();
Row<Semi24Linear> dense();
Row<Semi24Scaled> sm90_scaled_wgmma();
Row<Semi24Scaled> sm90_scaled_decode();
Row<Semi24Scaled> sm80_scaled_dots();

}  // namespace cuda::semi24_rows
}  // namespace sparseloom::kernels
