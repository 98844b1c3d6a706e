// sm90_decode_lines: it picks the instance for a dtype.
#include <cuda_runtime_api.h>

#include "kernels/bsr_linear/sm90/decode/entry.h"
#include "kernels/bsr_linear/sm90/decode_rows/entry.h"

namespace sparseloom::kernels::cuda {

int sm90_decode_lines(const MatmulArgs& args, const Schedule& schedule) noexcept {
  if (!decode90::takes(args, kNarrowBlockRowTokens)) return cudaErrorInvalidValue;
  return args.dtype == DType::bf16 ? decode90::rows::launch_bf16(args, schedule)
                                   : decode90::rows::launch_f16(args, schedule);
}

}  // namespace sparseloom::kernels::cuda
