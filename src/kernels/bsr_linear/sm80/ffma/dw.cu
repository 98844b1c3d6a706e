// dW in fp32 by FFMA, host side: checks that the schedule names an instance, and launches it.
#include <cstdint>
#include <limits>

#include "kernels/bsr_linear/sm80/ffma/dw.h"
#include "kernels/bsr_linear/sm80/ffma/dw_cut.h"
#include "kernels/bsr_linear/sm80/ffma/entry.h"
#include "kernels/bsr_linear/sm80/mma/dw/pieces.h"

namespace sparseloom::kernels::cuda {

int sm80_ffma_sdd(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const IndexView& index = args.index;
  if (index.blocks == 0) return cudaSuccess;
  if (!sdd::names_instance(schedule, ffma::sdd_rows(index.block.rows), ffma::kSddColumns, ffma::kSddTokens))
    return cudaErrorInvalidValue;
  const sdd::Pieces cut = sdd::pieces_of(args, schedule);
  if (cut.pieces == 0) return cudaErrorInvalidValue;
  const ffma::SddParams params{sdd::params_of(args, cut), index.block.rows};
  // Different thread blocks keep the parts of a block row. Some items are empty.
  const std::int64_t parts = index.block.rows / schedule.tile_m;
  const std::int64_t items = mma_sdd_items(index.blocks, params.block_rows, cut.log2_group) * parts;
  if (items > std::numeric_limits<std::int32_t>::max()) return cudaErrorInvalidConfiguration;
  const dim3 grid(static_cast<unsigned>(items), static_cast<unsigned>(cut.pieces));
  const cudaError_t status =
      ffma::ffma_sdd(params, grid, args.device, static_cast<cudaStream_t>(args.stream));
  return sdd::sum_up(status, params, cut.pieces, args);
}

}  // namespace sparseloom::kernels::cuda
