// The rows of this library for the verb tiles_linear, in order of preference at equal predictions. LinearOf
// adds `dense` and `reference` of the CPU after them. Each row is in row.cpp of its method's folder, those of
// the CPU in cpu/rows.cpp.
//
// A launch on a GPU needs TilesView::table on the device and, where there are 2:4 tiles, its metadata.
// Entries of the table that lie outside of the values count as absent. All entries are asynchronous, allocate
// nothing and may be captured in a CUDA graph.
#pragma once

#include <span>

#include "kernels/shared/cost/cost_terms.h"
#include "kernels/tiles_linear/product.h"
#include "plan/machine.h"
#include "sparseloom/tiles_linear.h"

namespace sparseloom::kernels {

/// Empty in a build without CUDA.
std::span<const Row<TilesLinear>> tiles_cuda_rows();
/// Empty on other machines than x86-64.
std::span<const Row<TilesLinear>> tiles_cpu_rows();

/// What a problem says of the tiles, in numbers of 64 x 64; `all` of W, stored or not.
struct TilesCounts {
  std::int64_t dense, halves, all;
};
TilesCounts counts_of(const LinearProblem& problem);

namespace cuda::tiles_rows {

/// The first refusals of every row: forward of 16-bit operands that lie at multiples of 16 bytes, with
/// nonempty products.
Refusal refuse(const LinearProblem& problem);
/// Those, and the ones of rows that run on compute capability 9.0 only.
Refusal refuse_on_hopper(const LinearProblem& problem, const plan::Machine& machine);
/// Bytes that a product moves: values, metadata, tokens and outputs.
double bytes_of(const LinearProblem& problem);

/// Thread blocks of the Hopper kernels: each computes a tile of rows x tokens, or one of `ranks` shares of
/// its reduction. `places` of them run at once. A stage is 64 columns of a tile: `stage_clocks` is its
/// latency, `dense_clocks` what a dense unit of 64 rows in it takes on the tensor cores.
struct TilesPass {
  int rows, tokens, ranks;
  std::int64_t places;
  double stage_clocks, dense_clocks;
};
/// The time of all tiles in us, without the launch.
double pass_us(const LinearProblem& problem, const Device& device, const TilesPass& pass);

/// Calls entry(product) on the product's device.
template <class Entry>
int launch_on_device(const TilesLinear::Args& args, Entry entry) {
  if (args.view.table == nullptr || (args.view.halves > 0 && args.view.metadata == nullptr))
    return 1;  // cudaErrorInvalidValue
  const runtime::CudaDeviceScope scope(args.product.device);
  return entry(TilesProduct{args.product, args.view});
}

Row<TilesLinear> sm90_wgmma();
Row<TilesLinear> sm90_decode();
Row<TilesLinear> sm80_mma();

}  // namespace cuda::tiles_rows
}  // namespace sparseloom::kernels
