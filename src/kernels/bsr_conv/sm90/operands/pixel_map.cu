// Makes tensor maps through the driver's cuTensorMapEncodeIm2col.
#include <cuda_runtime.h>

#include "kernels/bsr_conv/sm90/operands/pixel_map.h"
#include "kernels/shared/operands/encoded.h"
#include "kernels/shared/operands/tensor_map.h"

namespace sparseloom::kernels::cuda {
namespace {

using EncodeIm2col = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                  const cuuint64_t*, const int*, const int*, cuuint32_t, cuuint32_t,
                                  const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                  CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

}  // namespace

bool pixel_map_possible(const PixelTensor& tensor) noexcept {
  // Bits of a corner of the base pixels' box and of a tap's offset, which share a register.
  const int bits = tensor.deep ? 5 : 8, corner = 1 << (bits - 1), offset = 1 << bits;
  std::int64_t pixels = tensor.images;
  for (int i = 0; i < 3; ++i) {
    const PixelTensor::Axis& axis = tensor.axis[i];
    pixels *= axis.extent;
    if (i == 0 && !tensor.deep) {
      if (axis.extent != 1 || axis.first != 0 || axis.count != 1 || axis.reach != 0) return false;
      continue;
    }
    const std::int64_t upper = axis.first + std::int64_t{axis.count - 1} * axis.step - (axis.extent - 1);
    if (axis.first < -corner || axis.first >= corner || upper < -corner || upper >= corner) return false;
    if (axis.reach >= offset || axis.step < 1 || axis.step > 8 || axis.count < 1) return false;
  }
  return tensor_map_possible({tensor.data, tensor.dtype, pixels, tensor.channels, tensor.stride_bytes});
}

bool encode_pixel_map(CUtensorMap& map, const PixelTensor& tensor, int pixels, int channels) noexcept {
  static const auto encode = reinterpret_cast<EncodeIm2col>(find_in_driver("cuTensorMapEncodeIm2col"));
  if (encode == nullptr) return false;
  // The driver expects axes from the innermost on. The upper corner counts from the tensor's last pixel.
  cuuint64_t size[5] = {static_cast<cuuint64_t>(tensor.channels)}, stride[4];
  cuuint32_t step[5] = {1};
  int lower[3], upper[3], rank = 1;
  std::int64_t bytes = tensor.stride_bytes;
  for (int i = 2; i >= (tensor.deep ? 0 : 1); --i, ++rank) {
    const PixelTensor::Axis& axis = tensor.axis[i];
    size[rank] = static_cast<cuuint64_t>(axis.extent);
    step[rank] = static_cast<cuuint32_t>(axis.step);
    stride[rank - 1] = static_cast<cuuint64_t>(bytes);
    bytes *= axis.extent;
    lower[rank - 1] = axis.first;
    upper[rank - 1] =
        static_cast<int>(axis.first + std::int64_t{axis.count - 1} * axis.step - (axis.extent - 1));
  }
  size[rank] = static_cast<cuuint64_t>(tensor.images);
  step[rank] = 1;
  stride[rank - 1] = static_cast<cuuint64_t>(bytes);
  const bool wide = channels * static_cast<int>(size_of(tensor.dtype)) == 128;
  return encoded([&] {
    return encode(
        &map, tensor.dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        static_cast<cuuint32_t>(rank + 1), const_cast<void*>(tensor.data), size, stride, lower, upper,
        static_cast<cuuint32_t>(channels), static_cast<cuuint32_t>(pixels), step,
        CU_TENSOR_MAP_INTERLEAVE_NONE, wide ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
        wide ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  });
}

}  // namespace sparseloom::kernels::cuda
