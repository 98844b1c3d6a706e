// dW in fp32 by FFMA, host side: checks that the schedule names an instance, and launches it.
#include <cstdint>
#include <limits>

#include "kernels/bsr_linear/sm80/ffma/dw.h"
#include "kernels/bsr_linear/sm80/ffma/dw_cut.h"
#include "kernels/bsr_linear/sm80/ffma/entry.h"
#include "kernels/bsr_linear/sm80/mma/dw/pieces.h"

namespace sparseloom::kernels::cuda {

int sm80_ffma_dw(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const IndexView& index = args.index;
  if (index.blocks == 0) return cudaSuccess;
  if (!dw_pieces::names_instance(schedule, ffma::dw_rows(index.block.rows), ffma::kDwColumns,
                                 ffma::kDwTokens))
    return cudaErrorInvalidValue;
  const dw_pieces::Pieces cut = dw_pieces::pieces_of(args, schedule);
  if (cut.pieces == 0) return cudaErrorInvalidValue;
  const ffma::DwParams params{dw_pieces::params_of(args, cut), index.block.rows};
  // Different thread blocks compute the row ranges (parts) of a block row. Some items are empty.
  const std::int64_t parts = index.block.rows / schedule.tile_m;
  const std::int64_t items = mma_dw_items(index.blocks, params.block_rows, cut.log2_group) * parts;
  if (items > std::numeric_limits<std::int32_t>::max()) return cudaErrorInvalidConfiguration;
  const dim3 grid(static_cast<unsigned>(items), static_cast<unsigned>(cut.pieces));
  const cudaError_t status = ffma::ffma_dw(params, grid, args.device, static_cast<cudaStream_t>(args.stream));
  return dw_pieces::sum_up(status, params, cut.pieces, args);
}

}  // namespace sparseloom::kernels::cuda
