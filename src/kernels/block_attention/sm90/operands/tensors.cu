// Makes the tensor maps of tensors.h through the driver's cuTensorMapEncodeTiled.
#include "kernels/block_attention/sm90/operands/tensors.h"
#include "kernels/shared/operands/encoded.h"
#include "kernels/shared/operands/tensor_map.h"

namespace sparseloom::kernels::cuda::attention {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                            CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// A dimension of one element may have any stride in torch, and a map has none of 0: it takes that of a row.
std::int64_t stride_bytes(std::int64_t count, std::int64_t stride, std::int64_t head_dim) {
  return 2 * (count > 1 ? stride : head_dim);
}

}  // namespace

bool token_map_possible(const TokenTensor& t) noexcept {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  const std::int64_t strides[3] = {stride_bytes(t.tokens, t.tensor.token, t.head_dim),
                                   stride_bytes(t.heads, t.tensor.head, t.head_dim),
                                   stride_bytes(t.batch, t.tensor.batch, t.head_dim)};
  for (const std::int64_t stride : strides)
    if (stride <= 0 || stride % 16 != 0 || stride >= kMost) return false;
  return reinterpret_cast<std::uintptr_t>(t.tensor.data) % 16 == 0;
}

bool encode_token_map(CUtensorMap& map, const TokenTensor& t) noexcept {
  static const auto encode =
      reinterpret_cast<Encode>(::sparseloom::kernels::cuda::find_in_driver("cuTensorMapEncodeTiled"));
  if (encode == nullptr) return false;
  const cuuint64_t size[4] = {static_cast<cuuint64_t>(t.head_dim), static_cast<cuuint64_t>(t.tokens),
                              static_cast<cuuint64_t>(t.heads), static_cast<cuuint64_t>(t.batch)};
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(stride_bytes(t.tokens, t.tensor.token, t.head_dim)),
                                 static_cast<cuuint64_t>(stride_bytes(t.heads, t.tensor.head, t.head_dim)),
                                 static_cast<cuuint64_t>(stride_bytes(t.batch, t.tensor.batch, t.head_dim))};
  const cuuint32_t box[4] = {64, 64, 1, 1};
  const cuuint32_t every[4] = {1, 1, 1, 1};
  return encoded([&] {
    return encode(
        &map, t.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
        const_cast<void*>(t.tensor.data), size, strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  });
}

}  // namespace sparseloom::kernels::cuda::attention
