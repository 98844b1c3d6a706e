// dW on tensor cores, host side: finds the instance that the schedule names, and launches it.
#include <cstdint>

#include "kernels/bsr_linear/sm80/mma/dw/cut.h"
#include "kernels/bsr_linear/sm80/mma/dw/instances.h"
#include "kernels/bsr_linear/sm80/mma/dw/pieces.h"
#include "kernels/bsr_linear/sm80/mma/entry.h"

namespace sparseloom::kernels::cuda {

int sm80_mma_dw(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const IndexView& index = args.index;
  if (index.blocks == 0) return cudaSuccess;
  if (!dw_pieces::names_instance(schedule, index.block.rows, mma_dw_columns(index.block.rows),
                                 mma_dw_tokens(static_cast<int>(size_of(args.dtype)))))
    return cudaErrorInvalidValue;
  const dw_pieces::Pieces cut = dw_pieces::pieces_of(args, schedule);
  if (cut.pieces == 0) return cudaErrorInvalidValue;
  const MmaDwParams params = dw_pieces::params_of(args, cut);
  const std::int64_t items = mma_dw_items(index.blocks, params.block_rows, cut.log2_group);
  const dim3 grid(static_cast<unsigned>(items), static_cast<unsigned>(cut.pieces));
  const auto launch = args.dtype == DType::bf16  ? mma_dw_bf16
                      : args.dtype == DType::f16 ? mma_dw_f16
                                                 : mma_dw_tf32;
  const cudaError_t status =
      launch(params, schedule.tile_m, grid, args.device, static_cast<cudaStream_t>(args.stream));
  return dw_pieces::sum_up(status, params, cut.pieces, args);
}

}  // namespace sparseloom::kernels::cuda
