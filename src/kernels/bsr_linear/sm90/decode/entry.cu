// sm90_decode: it picks the instances of a method and dtype.
#include <cuda_runtime_api.h>

#include "kernels/bsr_linear/sm90/decode/entry.h"
#include "kernels/bsr_linear/sm90/decode_x_in_shared/entry.h"

namespace sparseloom::kernels::cuda {

int sm90_decode(const MatmulArgs& args, const Schedule& schedule) noexcept {
  if (!decode90::takes(args, kXInSharedTokens)) return cudaErrorInvalidValue;
  const bool bf16 = args.dtype == DType::bf16, narrow = decode90::is_narrow(args);
  if (schedule.method != (narrow ? Method::decode_x_in_shared : Method::decode)) return cudaErrorInvalidValue;
  if (narrow)
    return bf16 ? decode90::x_in_shared::launch_bf16(args, schedule)
                : decode90::x_in_shared::launch_f16(args, schedule);
  return bf16 ? decode90::launch_bf16(args, schedule) : decode90::launch_f16(args, schedule);
}

}  // namespace sparseloom::kernels::cuda
