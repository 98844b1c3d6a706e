// The host side of dw_norms: it encodes the tensor maps and launches the kernel.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/bsr_linear/cuda/gradient_norms.h"
#include "kernels/bsr_linear/sm90/dw_norms/kernel.cuh"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/operands/tensor_map.h"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::wgmma_norms {

template <class Element>
int launch(const GradientNorms& call) noexcept {
  constexpr int kSharedBytes = sizeof(SharedStorage);
  static_assert(kSharedBytes <= 227 * 1024, "exceeds the 227 KB of shared memory of sm_90");
  const auto ceil_div = [](std::int64_t a, std::int64_t b) {
    return static_cast<std::int32_t>((a + b - 1) / b);
  };
  const auto cells_log2 = [](int side) { return std::countr_zero(static_cast<unsigned>(side / 8)); };
  Params params{};
  params.grid = {call.norms, ceil_div(call.dy.cols, call.block.rows), ceil_div(call.x.cols, call.block.cols),
                 cells_log2(call.block.rows), cells_log2(call.block.cols)};
  params.norm = call.norm;
  params.tile_rows = ceil_div(call.dy.cols, kRows);
  params.tile_cols = ceil_div(call.x.cols, kColumns);
  params.steps = ceil_div(call.dy.rows, kTokens);
  const TensorMapMatrix dy{call.dy.data, call.dy.dtype, call.dy.rows, call.dy.cols, call.dy.stride * 2},
      x{call.x.data, call.x.dtype, call.x.rows, call.x.cols, call.x.stride * 2};
  if (!tensor_map_possible(dy) || !tensor_map_possible(x) ||
      std::int64_t{params.tile_rows} * params.tile_cols > INT32_MAX)
    return cudaErrorInvalidValue;
  const TensorMapBox box = Element::box(Element::kStep, kBoxColumns);
  if (!encode_tensor_map(params.dy, dy, box) || !encode_tensor_map(params.x, x, box))
    return cudaErrorInvalidValue;
  if (const cudaError_t status = allow_shared_memory<wgmma_norms_kernel<Element>>(kSharedBytes, call.device);
      status != cudaSuccess)
    return status;
  const int grid =
      std::min(params.tile_rows * params.tile_cols, runtime::cuda_device(call.device).multiprocessors);
  wgmma_norms_kernel<Element>
      <<<static_cast<unsigned>(grid), kThreads, kSharedBytes, static_cast<cudaStream_t>(call.stream)>>>(
          params);
  return cudaGetLastError();
}

}  // namespace sparseloom::kernels::cuda::wgmma_norms
