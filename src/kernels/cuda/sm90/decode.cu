// sm90_decode and sm90_decode_lines: dtype and block to instance, and what they leave to other kernels.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm90/decode.h"

namespace sparseloom::kernels::cuda {

int sm90_decode(const MatmulArgs& args) noexcept {
  const BlockShape block = args.index.block;
  const bool narrow = block == BlockShape{16, 16}, bf16 = args.dtype == DType::bf16;
  if (args.m < 1 || args.m > (narrow ? kResidentTokens : kDecodeTokens) || args.direction != Direction::forward ||
      (!bf16 && args.dtype != DType::f16) || (!narrow && std::min(block.rows, block.cols) < 32)) {
    return cudaErrorInvalidValue;
  }
  // A plan sees sizes, not pointers: an operand that begins or strides otherwise is found out here.
  int status;
  if (narrow) {
    status = bf16 ? decode90::resident::launch_bf16(args) : decode90::resident::launch_f16(args);
  } else {
    status = bf16 ? decode90::launch_bf16(args) : decode90::launch_f16(args);
  }
  if (status != decode90::kCannotTake) return status;
  if (args.m > kDecodeTokens) return sm80_mma_dds(args);
  return narrow ? sm80_decode_staged(args) : sm80_decode(args);
}

int sm90_decode_lines(const MatmulArgs& args) noexcept {
  const BlockShape block = args.index.block;
  const bool narrow = block == BlockShape{16, 16}, bf16 = args.dtype == DType::bf16;
  if (args.m < 1 || args.m > (narrow ? kNarrowLineTokens : kDecodeTokens) || args.direction != Direction::forward ||
      (!bf16 && args.dtype != DType::f16) || (!narrow && std::min(block.rows, block.cols) < 32)) {
    return cudaErrorInvalidValue;
  }
  if (args.uneven_lines) return sm90_decode(args);
  const int status = bf16 ? decode90::line::launch_bf16(args) : decode90::line::launch_f16(args);
  return status == decode90::kCannotTake ? sm80_decode(args) : status;
}

}  // namespace sparseloom::kernels::cuda
