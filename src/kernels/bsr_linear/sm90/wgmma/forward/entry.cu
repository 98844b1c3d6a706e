// Entries of the kernels sm90_wgmma_forward and sm90_wgmma_merged: they map dtype and direction to an
// instance of kernel.cuh.
#include <cuda_runtime.h>

#include "kernels/bsr_linear/sm90/wgmma/forward/entry.h"
#include "kernels/bsr_linear/sm90/wgmma/merged/merged_product.h"

namespace sparseloom::kernels::cuda {
namespace {

int launch(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const bool dx = args.direction == Direction::dx;
  switch (args.dtype) {
    case DType::bf16:
      if (args.glu) return wgmma::forward::forward_glu_bf16(args, schedule);
      if (args.residual != nullptr) return wgmma::forward::forward_plus_bf16(args, schedule);
      return dx ? wgmma::forward::dx_bf16(args, schedule) : wgmma::forward::forward_bf16(args, schedule);
    case DType::f16:
      if (args.glu) return wgmma::forward::forward_glu_f16(args, schedule);
      if (args.residual != nullptr) return wgmma::forward::forward_plus_f16(args, schedule);
      return dx ? wgmma::forward::dx_f16(args, schedule) : wgmma::forward::forward_f16(args, schedule);
    case DType::f32:
      if (!args.tf32) return cudaErrorInvalidValue;  // fp32 is rounded only if the caller agrees
      return dx ? wgmma::forward::dx_tf32(args, schedule) : wgmma::forward::forward_tf32(args, schedule);
    case DType::f8e4m3:
      if (dx) return cudaErrorInvalidValue;
      if (args.out_dtype == DType::bf16)
        return args.fast_accum ? wgmma::forward::forward_e4m3_fast_bf16(args, schedule)
                               : wgmma::forward::forward_e4m3_bf16(args, schedule);
      return args.fast_accum ? wgmma::forward::forward_e4m3_fast_f32(args, schedule)
                             : wgmma::forward::forward_e4m3_f32(args, schedule);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

int sm90_wgmma_forward(const MatmulArgs& args, const Schedule& schedule) noexcept {
  if (args.direction == Direction::dw) return cudaErrorInvalidValue;
  // An epilogue of fp32 that adds a residual would make ptxas serialise the wgmma, so the row says that the
  // caller adds it.
  if (args.dtype == DType::f32 && args.residual != nullptr) return cudaErrorInvalidValue;
  return launch(args, schedule);
}

int sm90_wgmma_merged(const MatmulArgs& args, const Schedule& schedule) noexcept {
  if (args.direction == Direction::dw || size_of(args.dtype) != 2) return cudaErrorInvalidValue;
  return merged_product(args, Merging::kWgmmaLeast,
                        [&schedule](const MatmulArgs& product) { return launch(product, schedule); });
}

}  // namespace sparseloom::kernels::cuda
