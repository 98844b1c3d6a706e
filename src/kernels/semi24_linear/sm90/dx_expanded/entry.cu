#include <cuda_runtime.h>

#include "kernels/semi24_linear/sm90/dx_expanded/entry.h"

namespace sparseloom::kernels::cuda {

int sm90_semi24_dx(const MatmulArgs& args, const Semi24View& w, int tile, int ranks) noexcept {
  using namespace semi24_dx;
  using Entry = int (*)(const MatmulArgs&, const Semi24View&, int) noexcept;
  static constexpr Entry kBf16[kTileCount] = {dx_bf16_16, dx_bf16_64, dx_bf16_128};
  static constexpr Entry kF16[kTileCount] = {dx_f16_16, dx_f16_64, dx_f16_128};
  if (tile < 0 || tile >= kTileCount || args.direction != Direction::dx) return cudaErrorInvalidValue;
  if (args.dtype == DType::bf16) return kBf16[tile](args, w, ranks);
  if (args.dtype == DType::f16) return kF16[tile](args, w, ranks);
  return cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda
