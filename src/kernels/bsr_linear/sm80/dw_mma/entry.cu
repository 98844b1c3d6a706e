// dW on tensor cores, host side: workspace size and launches.
#include <cstdint>

#include "kernels/bsr_linear/sm80/dw_mma/cut.h"
#include "kernels/bsr_linear/sm80/dw_mma/entry.h"
#include "kernels/bsr_linear/sm80/dw_mma/instances.h"
#include "kernels/bsr_linear/sm80/dw_mma/sdd_host.h"
#include "runtime/cuda.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda {

std::size_t sm80_mma_sdd_workspace(const Problem& p, int multiprocessors) noexcept {
  if (p.blocks == 0) return 0;
  return sdd::partial_bytes(p, mma_sdd::cut_tokens(mma_sdd::size_of_product(p), multiprocessors).pieces);
}

int sm80_mma_sdd(const MatmulArgs& args) noexcept {
  const IndexView& index = args.index;
  if (index.blocks == 0) return cudaSuccess;
  const mma_sdd::Size size{args.m, index.block_rows(), index.blocks, index.block,
                           static_cast<int>(size_of(args.dtype))};
  const mma_sdd::Cut cut = mma_sdd::cut_tokens(size, runtime::cuda_device(args.device).multiprocessors);
  const MmaSddParams params = sdd::params_of(args, cut);
  const std::int64_t items = mma_sdd_items(index.blocks, params.block_rows, cut.log2_group);
  const dim3 grid(static_cast<unsigned>(items), static_cast<unsigned>(cut.pieces));
  const auto launch = args.dtype == DType::bf16  ? mma_sdd_bf16
                      : args.dtype == DType::f16 ? mma_sdd_f16
                                                 : mma_sdd_tf32;
  const cudaError_t status =
      launch(params, index.block.rows, grid, args.device, static_cast<cudaStream_t>(args.stream));
  return sdd::sum_up(status, params, cut.pieces, args);
}

}  // namespace sparseloom::kernels::cuda
