// dW of a convolution on tensor cores, host side: finds the instance that the schedule names, and launches
// it.
#include <cstdint>

#include "kernels/bsr_conv/sm80/dw_mma/instances.h"
#include "kernels/bsr_conv/sm80/entry.h"
#include "kernels/bsr_linear/sm80/mma/dw/pieces.h"

namespace sparseloom::kernels::cuda {

int sm80_conv_dw(const MatmulArgs& args, const conv::Shape& shape, const Schedule& schedule) noexcept {
  const IndexView& index = args.index;
  if (index.blocks == 0) return cudaSuccess;
  if (!dw_pieces::names_instance(schedule, index.block.rows, mma_dw_columns(index.block.rows),
                                 mma_dw_tokens(static_cast<int>(size_of(args.dtype)))))
    return cudaErrorInvalidValue;
  const dw_pieces::Pieces cut = dw_pieces::pieces_of(args, schedule);
  if (cut.pieces == 0) return cudaErrorInvalidValue;
  conv_dw::Params params{dw_pieces::params_of(args, cut), {}, static_cast<unsigned>(shape.taps()), false};
  params.few_taps = params.x_chunks && conv::few_taps(shape) && args.b_stride < std::int64_t{1} << 31;
  for (int i = 0; i < 3; ++i) params.axis[i] = shape.axis[i];
  params.elements *= shape.taps();
  const std::int64_t items = mma_dw_items(index.blocks * shape.taps(), params.block_rows, cut.log2_group);
  const dim3 grid(static_cast<unsigned>(items), static_cast<unsigned>(cut.pieces));
  const auto launch = args.dtype == DType::bf16  ? conv_dw::conv_dw_bf16
                      : args.dtype == DType::f16 ? conv_dw::conv_dw_f16
                                                 : conv_dw::conv_dw_tf32;
  const cudaError_t status =
      launch(params, schedule.tile_m, grid, args.device, static_cast<cudaStream_t>(args.stream));
  return dw_pieces::sum_up(status, params, cut.pieces, args);
}

}  // namespace sparseloom::kernels::cuda
