// sm90_decode_lines: it picks the instance for a dtype.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/bsr_linear/sm80/decode/entry.h"
#include "kernels/bsr_linear/sm90/decode_lines/limits.h"
#include "kernels/bsr_linear/sm90/decode_lines/rows/entry.h"

namespace sparseloom::kernels::cuda {

int sm90_decode_lines(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const BlockShape block = args.index.block;
  const bool narrow = block == BlockShape{decode_lines::kSide, decode_lines::kSide},
             halves = args.dtype == DType::bf16 || args.dtype == DType::f16;
  if (args.m < 1 || args.m > (narrow ? kNarrowBlockRowTokens : kDecodeTokens) ||
      args.direction != Direction::forward || !halves || (!narrow && std::min(block.rows, block.cols) < 32))
    return cudaErrorInvalidValue;
  return args.dtype == DType::bf16 ? decode_lines::rows::launch_bf16(args, schedule)
                                   : decode_lines::rows::launch_f16(args, schedule);
}

}  // namespace sparseloom::kernels::cuda
