#include <cuda_runtime.h>

#include "kernels/semi24_linear/sm90/decode/entry.h"

namespace sparseloom::kernels::cuda {

int sm90_semi24_decode(const Semi24Product& product, int ranks) noexcept {
  using Entry = int (*)(const Semi24Product&, int) noexcept;
  static constexpr Entry kBf16[] = {semi24::decode_bf16_16, semi24::decode_bf16_32, semi24::decode_bf16_64};
  static constexpr Entry kF16[] = {semi24::decode_f16_16, semi24::decode_f16_32, semi24::decode_f16_64};
  static constexpr Entry kI8[] = {semi24::decode_i8_16, semi24::decode_i8_32, semi24::decode_i8_64};
  static constexpr Entry kE4m3[] = {semi24::decode_e4m3_16, semi24::decode_e4m3_32, semi24::decode_e4m3_64};
  int instance = 0;
  while (instance < 3 && product.args.m > semi24::kDecodeTokens[instance]) ++instance;
  if (instance == 3) return cudaErrorInvalidValue;
  switch (product.args.dtype) {
    case DType::bf16: return kBf16[instance](product, ranks);
    case DType::f16: return kF16[instance](product, ranks);
    case DType::i8: return kI8[instance](product, ranks);
    case DType::f8e4m3: return kE4m3[instance](product, ranks);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda
