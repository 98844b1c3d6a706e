// Makes tensor maps through the driver's cuTensorMapEncodeTiled.
#include <cuda_runtime.h>

#include "kernels/shared/operands/encoded.h"
#include "kernels/shared/operands/tensor_map.h"

namespace sparseloom::kernels::cuda {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                            CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
CUtensorMapDataType type_of(const TensorMapMatrix& matrix) noexcept {
  switch (matrix.dtype) {
    case DType::bf16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::f16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::f32: return matrix.tf32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    default: return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
}

}  // namespace

void* find_in_driver(const char* name) noexcept {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
#else
  const cudaError_t status = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  if (status != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return nullptr;
  }
  return result == cudaDriverEntryPointSuccess ? found : nullptr;
}

bool make_context_current() noexcept {
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess && cudaSetDevice(device) == cudaSuccess;
}

bool tensor_map_possible(const TensorMapMatrix& matrix) noexcept {
  constexpr std::int64_t kCoordinates = std::int64_t{1} << 31, kStrideBytes = std::int64_t{1} << 40;
  return reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0 && matrix.stride_bytes % 16 == 0 &&
         matrix.stride_bytes < kStrideBytes && matrix.height > 0 && matrix.height < kCoordinates &&
         matrix.width > 0 && matrix.width < kCoordinates;
}

bool encode_tensor_map(CUtensorMap& map, const TensorMapMatrix& matrix, const TensorMapBox& box) noexcept {
  static const auto encode = reinterpret_cast<Encode>(find_in_driver("cuTensorMapEncodeTiled"));
  if (encode == nullptr) return false;
  const cuuint64_t size[2] = {static_cast<cuuint64_t>(matrix.width), static_cast<cuuint64_t>(matrix.height)};
  const cuuint64_t stride[1] = {static_cast<cuuint64_t>(matrix.stride_bytes)};
  const cuuint32_t box_size[2] = {static_cast<cuuint32_t>(box.columns), static_cast<cuuint32_t>(box.rows)};
  const cuuint32_t every[2] = {1, 1};
  // The bytes that L2 fetches around each read. Rows of 64 bytes are scattered, and 256 bytes would fetch
  // data that is not read, which measured slower.
  const CUtensorMapL2promotion fetched =
      box.swizzle_bytes == 128 ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  return encoded([&] {
    return encode(&map, type_of(matrix), 2, const_cast<void*>(matrix.data), size, stride, box_size, every,
                  CU_TENSOR_MAP_INTERLEAVE_NONE,
                  box.swizzle_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B, fetched,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  });
}

}  // namespace sparseloom::kernels::cuda
