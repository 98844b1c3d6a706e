// Entry points sm90_mma_forward and sm90_mma_merged: they select the instance of kernel.cuh by dtype and
// direction.
#include <cuda_runtime.h>

#include "kernels/bsr_linear/sm90/mma/entry.h"
#include "kernels/bsr_linear/sm90/wgmma/merged/merged_product.h"

namespace sparseloom::kernels::cuda {
namespace {

int launch(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const bool dx = args.direction == Direction::dx;
  if (args.dtype == DType::bf16)
    return dx ? sm90_mma::dx_bf16(args, schedule) : sm90_mma::forward_bf16(args, schedule);
  return dx ? sm90_mma::dx_f16(args, schedule) : sm90_mma::forward_f16(args, schedule);
}

bool takes(const MatmulArgs& args) { return args.direction != Direction::dw && size_of(args.dtype) == 2; }

}  // namespace

int sm90_mma_forward(const MatmulArgs& args, const Schedule& schedule) noexcept {
  if (!takes(args)) return cudaErrorInvalidValue;
  return launch(args, schedule);
}

int sm90_mma_merged(const MatmulArgs& args, const Schedule& schedule) noexcept {
  if (!takes(args)) return cudaErrorInvalidValue;
  return merged_product(args, Merging::kMmaLeast,
                        [&](const MatmulArgs& product) { return launch(product, schedule); });
}

}  // namespace sparseloom::kernels::cuda
