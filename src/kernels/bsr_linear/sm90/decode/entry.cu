// sm90_decode: it picks the instance for a dtype and block shape, and passes what that cannot take to a
// fallback kernel.
#include <cuda_runtime_api.h>

#include "kernels/bsr_linear/sm80/decode/entry.h"
#include "kernels/bsr_linear/sm80/decode_staged/entry.h"
#include "kernels/bsr_linear/sm80/forward_mma/entry.h"
#include "kernels/bsr_linear/sm90/decode/entry.h"
#include "kernels/bsr_linear/sm90/decode_x_in_shared/entry.h"

namespace sparseloom::kernels::cuda {

int sm90_decode(const MatmulArgs& args) noexcept {
  if (!decode90::takes(args, kXInSharedTokens)) return cudaErrorInvalidValue;
  const bool narrow = decode90::is_narrow(args), bf16 = args.dtype == DType::bf16;
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

}  // namespace sparseloom::kernels::cuda
