// dW in fp32 by FFMA, host side: workspace size and launches.
#include <cstdint>
#include <limits>

#include "kernels/bsr_linear/sm80/dw_mma/sdd_host.h"
#include "kernels/bsr_linear/sm80/fp32_ffma/entry.h"
#include "kernels/bsr_linear/sm80/fp32_ffma/sdd.h"
#include "kernels/bsr_linear/sm80/fp32_ffma/sdd_cut.h"
#include "runtime/cuda.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda {

std::size_t sm80_ffma_sdd_workspace(const Problem& p, int multiprocessors) noexcept {
  if (p.blocks == 0) return 0;
  return sdd::partial_bytes(p, ffma::cut_of_product(p, multiprocessors).pieces);
}

int sm80_ffma_sdd(const MatmulArgs& args) noexcept {
  const IndexView& index = args.index;
  if (index.blocks == 0) return cudaSuccess;
  const int multiprocessors = runtime::cuda_device(args.device).multiprocessors;
  const ffma::SddCut cut =
      ffma::cut_tokens(args.m, index.block_rows(), index.block, index.blocks, multiprocessors);
  const ffma::SddParams params{sdd::params_of(args, cut), index.block.rows};
  // Some items are empty.
  const std::int64_t items = mma_sdd_items(index.blocks, params.block_rows, cut.log2_group) * cut.parts;
  if (items > std::numeric_limits<std::int32_t>::max()) return cudaErrorInvalidConfiguration;
  const dim3 grid(static_cast<unsigned>(items), static_cast<unsigned>(cut.pieces));
  const cudaError_t status =
      ffma::ffma_sdd(params, grid, args.device, static_cast<cudaStream_t>(args.stream));
  return sdd::sum_up(status, params, cut.pieces, args);
}

}  // namespace sparseloom::kernels::cuda
