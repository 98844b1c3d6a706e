#include <cuda_runtime.h>

#include "kernels/semi24_linear/sm90/forward_wgmma/entry.h"

namespace sparseloom::kernels::cuda {

int sm90_semi24_wgmma(const Semi24Product& product, int tile) noexcept {
  using Entry = int (*)(const Semi24Product&) noexcept;
  static constexpr Entry kBf16[semi24::kTileCount] = {
      semi24::forward_bf16_256x192, semi24::forward_bf16_256x128, semi24::forward_bf16_128x128};
  static constexpr Entry kF16[semi24::kTileCount] = {semi24::forward_f16_256x192, semi24::forward_f16_256x128,
                                                     semi24::forward_f16_128x128};
  if (tile < 0 || tile >= semi24::kTileCount) return cudaErrorInvalidValue;
  switch (product.args.dtype) {
    case DType::bf16: return kBf16[tile](product);
    case DType::f16: return kF16[tile](product);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda
