// Selects the staged instance for a call.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "kernels/bsr_linear/sm80/decode/entry.h"
#include "kernels/bsr_linear/sm80/decode_staged/entry.h"

namespace sparseloom::kernels::cuda {

int sm80_decode_staged(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const IndexView& index = args.index;
  if (args.m < 1 || args.m > kDecodeTokens || args.direction != Direction::forward)
    return cudaErrorInvalidValue;
  if (size_of(args.dtype) != 2 || std::max(index.block.rows, index.block.cols) > kStagedBlock)
    return cudaErrorInvalidValue;
  if (reinterpret_cast<std::uintptr_t>(args.values) % 16 != 0 || index.cols > kStagedColumns)
    return cudaErrorInvalidValue;
  return args.dtype == DType::bf16 ? decode::staged::launch_bf16(args, schedule)
                                   : decode::staged::launch_f16(args, schedule);
}

}  // namespace sparseloom::kernels::cuda
