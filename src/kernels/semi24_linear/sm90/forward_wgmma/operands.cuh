// The tensor maps of a product, for this kernel and for the one for few tokens.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/semi24_linear/product.h"
#include "kernels/semi24_linear/sm90/forward_wgmma/tile.cuh"
#include "kernels/shared/operands/tensor_map.h"

namespace sparseloom::kernels::cuda::semi24 {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Row tiles in a chunk: all of them if W fits in half of L2; otherwise as many as fit in a third.
inline unsigned chunk_of(unsigned row_tiles, std::int64_t weight_bytes, std::int64_t l2_bytes) {
  const std::int64_t l2 = std::max(l2_bytes, std::int64_t{16} << 20);
  if (weight_bytes <= l2 / 2) return row_tiles;
  const std::int64_t chunks = std::min<std::int64_t>(ceil_div(3 * weight_bytes, l2), row_tiles);
  return static_cast<unsigned>(ceil_div(row_tiles, chunks));
}

/// Fills in the parameters that both kernels read. Returns false if TMA cannot address the operands.
template <class T>
bool describe_inputs(Params& params, const Semi24Product& product) noexcept {
  const MatmulArgs& args = product.args;
  const std::int64_t stored = 2 * ceil_div(product.cols, 4);
  constexpr int kBytes = T::Element::kBytes;
  const TensorMapMatrix values{args.values, args.dtype, product.rows, stored, stored * kBytes};
  const TensorMapMatrix x{args.a, args.dtype, args.m, product.cols, args.a_stride * kBytes};
  if (!tensor_map_possible(values) || !tensor_map_possible(x)) return false;
  params.metadata = product.metadata;
  params.rows = static_cast<std::int32_t>(product.rows);
  params.metadata_rows = static_cast<std::int32_t>(ceil_div(product.rows, kMetadataRows));
  params.k_tiles = static_cast<std::int32_t>(ceil_div(product.cols, T::kCols));
  params.tokens = static_cast<std::int32_t>(args.m);
  params.bias = args.bias;
  params.activation = args.activation;
  params.adds_residual = args.residual != nullptr;
  if constexpr (T::Element::kScaled) {
    params.x_scale = args.a_scale, params.x_scale_each = args.a_scale_each;
    params.w_scale = args.w_scale, params.w_scale_each = args.w_scale_each;
    params.is_f32 = args.out_dtype == DType::f32;
    params.out_f32 = params.is_f32 ? static_cast<float*>(args.out) : nullptr;
    params.out_stride = args.out_stride;
  }
  return encode_tensor_map(params.values, values, {T::kRows, T::kCols / 2, 128}) &&
         encode_tensor_map(params.x, x, {T::kTokens, T::kCols / 2, 128});
}

}  // namespace sparseloom::kernels::cuda::semi24
