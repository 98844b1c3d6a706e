// sm90_decode_lines: it picks the instance for a dtype, and passes what the instance cannot take to another
// kernel.
#include <cuda_runtime_api.h>

#include "kernels/bsr_linear/sm80/decode/entry.h"
#include "kernels/bsr_linear/sm90/decode/entry.h"
#include "kernels/bsr_linear/sm90/decode_rows/entry.h"

namespace sparseloom::kernels::cuda {

int sm90_decode_lines(const MatmulArgs& args) noexcept {
  if (!decode90::takes(args, kNarrowBlockRowTokens)) return cudaErrorInvalidValue;
  const int status =
      args.dtype == DType::bf16 ? decode90::rows::launch_bf16(args) : decode90::rows::launch_f16(args);
  return status == kCannotTake ? sm80_decode(args) : status;
}

}  // namespace sparseloom::kernels::cuda
