// Selects the staged instance for a call, or sm80_decode for operands that the instance cannot load.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/bsr_linear/sm80/decode/entry.h"
#include "kernels/bsr_linear/sm80/decode_staged/entry.h"

namespace sparseloom::kernels::cuda {

int sm80_decode_staged(const MatmulArgs& args) noexcept {
  const IndexView& index = args.index;
  if (args.m < 1 || args.m > kDecodeTokens || args.direction != Direction::forward)
    return cudaErrorInvalidValue;
  if (size_of(args.dtype) != 2 || std::max(index.block.rows, index.block.cols) > kStagedBlock)
    return cudaErrorInvalidValue;
  // The staged kernel needs vector loads of W and 32-bit positions of k. This is checked here, since a plan
  // sees sizes, not pointers; other calls fall back.
  constexpr std::int64_t kMostK = std::numeric_limits<std::int32_t>::max() - 128;
  if (reinterpret_cast<std::uintptr_t>(args.values) % 16 != 0 || index.cols > kMostK)
    return sm80_decode(args);
  return args.dtype == DType::bf16 ? decode::staged::launch_bf16(args) : decode::staged::launch_f16(args);
}

}  // namespace sparseloom::kernels::cuda
