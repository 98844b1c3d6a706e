// The tensor maps of a product, for this kernel and for the one for few tokens.
#pragma once

#include <cstdint>

#include "kernels/semi24_linear/sm90/forward_wgmma/operands.cuh"
#include "kernels/shared/operands/tensor_map.h"
#include "kernels/tiles_linear/product.h"
#include "kernels/tiles_linear/sm90/forward_wgmma/tile.cuh"

namespace sparseloom::kernels::cuda::tiles {

/// Fills in the parameters that both kernels read. Returns false if TMA cannot address the operands.
template <class T>
bool describe_inputs(Params& params, const TilesProduct& product) noexcept {
  const MatmulArgs& args = product.args;
  const TilesView& w = product.w;
  const auto* const values = static_cast<const std::byte*>(args.values);
  const TensorMapMatrix dense{values, args.dtype, w.dense * w.side, w.side, w.side * 2};
  const TensorMapMatrix halves{values + w.dense_values() * 2, args.dtype, w.halves * w.side, w.side / 2,
                               w.side};
  const TensorMapMatrix x{args.a, args.dtype, args.m, w.cols, args.a_stride * 2};
  const auto encodes = [](CUtensorMap& map, const TensorMapMatrix& matrix, const TensorMapBox& box) {
    // A kind without tiles is never copied, and TMA describes no empty matrix.
    return matrix.height == 0 || (tensor_map_possible(matrix) && encode_tensor_map(map, matrix, box));
  };
  semi24::Params& to = params.product;
  params.table = w.table;
  params.parts = static_cast<std::int32_t>(w.side / 64);
  params.units[0] = static_cast<std::int32_t>(w.dense * (w.side / 64));
  params.units[1] = static_cast<std::int32_t>(w.halves * (w.side / 64));
  to.metadata = w.metadata;
  to.rows = static_cast<std::int32_t>(w.rows);
  to.k_tiles = static_cast<std::int32_t>(w.units());
  to.tokens = static_cast<std::int32_t>(args.m);
  to.bias = args.bias;
  to.activation = args.activation;
  to.adds_residual = args.residual != nullptr;
  return encodes(params.dense, dense, {64, 64, 128}) && encodes(to.values, halves, {64, 32, 64}) &&
         encodes(to.x, x, {T::kXPart, T::kCols, 128});
}

}  // namespace sparseloom::kernels::cuda::tiles
