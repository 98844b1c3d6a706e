#include <cuda_runtime.h>

#include "kernels/semi24_linear/sm80/forward_mma/entry.h"

namespace sparseloom::kernels::cuda {

int sm80_semi24_mma(const Semi24Product& product, int tile) noexcept {
  using Entry = int (*)(const Semi24Product&) noexcept;
  static constexpr Entry kBf16[semi24_mma::kTileCount] = {
      semi24_mma::forward_bf16_128x64, semi24_mma::forward_bf16_64x32, semi24_mma::forward_bf16_32x16};
  static constexpr Entry kF16[semi24_mma::kTileCount] = {
      semi24_mma::forward_f16_128x64, semi24_mma::forward_f16_64x32, semi24_mma::forward_f16_32x16};
  if (tile < 0 || tile >= semi24_mma::kTileCount) return cudaErrorInvalidValue;
  switch (product.args.dtype) {
    case DType::bf16: return kBf16[tile](product);
    case DType::f16: return kF16[tile](product);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda
