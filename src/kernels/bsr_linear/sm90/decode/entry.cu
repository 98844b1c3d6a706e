// sm90_decode and sm90_decode_lines: each picks the instance for a dtype and block shape, and passes what it
// cannot take to a fallback kernel.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/bsr_linear/cuda/launch.h"
#include "kernels/bsr_linear/sm90/decode/entry.h"

namespace sparseloom::kernels::cuda {

namespace {

bool is_narrow(const MatmulArgs& args) { return args.index.block == BlockShape{16, 16}; }

/// Whether the kernels take a call. narrow_tokens: the most tokens with blocks of 16 x 16.
bool takes(const MatmulArgs& args, int narrow_tokens) {
  const bool narrow = is_narrow(args), halves = args.dtype == DType::bf16 || args.dtype == DType::f16;
  return args.m >= 1 && args.m <= (narrow ? narrow_tokens : kDecodeTokens) &&
         args.direction == Direction::forward && halves &&
         (narrow || std::min(args.index.block.rows, args.index.block.cols) >= 32);
}

}  // namespace

int sm90_decode(const MatmulArgs& args) noexcept {
  if (!takes(args, kXInSharedTokens)) return cudaErrorInvalidValue;
  const bool narrow = is_narrow(args), bf16 = args.dtype == DType::bf16;
  // A plan sees sizes, not pointers, so only the launch finds out whether an operand is misaligned. A
  // fallback then takes the call.
  int status;
  if (narrow) {
    status = bf16 ? decode90::x_in_shared::launch_bf16(args) : decode90::x_in_shared::launch_f16(args);
  } else {
    status = bf16 ? decode90::launch_bf16(args) : decode90::launch_f16(args);
  }
  if (status != kCannotTake) return status;
  if (args.m > kDecodeTokens) return sm80_mma_dds(args);
  return narrow ? sm80_decode_staged(args) : sm80_decode(args);
}

int sm90_decode_lines(const MatmulArgs& args) noexcept {
  if (!takes(args, kNarrowBlockRowTokens)) return cudaErrorInvalidValue;
  const int status =
      args.dtype == DType::bf16 ? decode90::rows::launch_bf16(args) : decode90::rows::launch_f16(args);
  return status == kCannotTake ? sm80_decode(args) : status;
}

}  // namespace sparseloom::kernels::cuda
