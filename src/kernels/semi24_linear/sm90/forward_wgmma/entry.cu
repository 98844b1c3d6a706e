#include <cuda_runtime.h>

#include "kernels/semi24_linear/sm90/forward_wgmma/entry.h"

namespace sparseloom::kernels::cuda {

int sm90_semi24_wgmma(const Semi24Product& product, int tile) noexcept {
  using namespace semi24;
  using Entry = int (*)(const Semi24Product&) noexcept;
  static constexpr Entry kBf16[kTileCount] = {forward_bf16_256x192, forward_bf16_256x128,
                                              forward_bf16_128x128, forward_bf16_128x64};
  static constexpr Entry kF16[kTileCount] = {forward_f16_256x192, forward_f16_256x128, forward_f16_128x128,
                                             forward_f16_128x64};
  static constexpr Entry kI8[kTileCount] = {forward_i8_256x192, forward_i8_256x128, forward_i8_128x128,
                                            forward_i8_128x64};
  static constexpr Entry kFast[kTileCount] = {forward_e4m3_fast_256x192, forward_e4m3_fast_256x128,
                                              forward_e4m3_fast_128x128, forward_e4m3_fast_128x64};
  static constexpr Entry kPromoted[kTileCount] = {nullptr, forward_e4m3_256x128, forward_e4m3_128x128,
                                                  forward_e4m3_128x64};
  if (tile < 0 || tile >= kTileCount) return cudaErrorInvalidValue;
  const auto entry = [&]() -> Entry {
    switch (product.args.dtype) {
      case DType::bf16: return kBf16[tile];
      case DType::f16: return kF16[tile];
      case DType::i8: return kI8[tile];
      case DType::f8e4m3: return product.args.fast_accum ? kFast[tile] : kPromoted[tile];
      default: return nullptr;
    }
  }();
  return entry != nullptr ? entry(product) : static_cast<int>(cudaErrorInvalidValue);
}

}  // namespace sparseloom::kernels::cuda
