// sm90_decode: it picks the instance for a dtype and block shape.
#include <cuda_runtime_api.h>

#include "kernels/bsr_linear/sm90/decode/entry.h"
#include "kernels/bsr_linear/sm90/decode_x_in_shared/entry.h"

namespace sparseloom::kernels::cuda {

int sm90_decode(const MatmulArgs& args) noexcept {
  if (!decode90::takes(args, kXInSharedTokens)) return cudaErrorInvalidValue;
  const bool bf16 = args.dtype == DType::bf16;
  if (decode90::is_narrow(args))
    return bf16 ? decode90::x_in_shared::launch_bf16(args) : decode90::x_in_shared::launch_f16(args);
  return bf16 ? decode90::launch_bf16(args) : decode90::launch_f16(args);
}

}  // namespace sparseloom::kernels::cuda
