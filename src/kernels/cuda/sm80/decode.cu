// Which decode instance serves a call.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <limits>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm80/decode.h"

namespace sparseloom::kernels::cuda {
namespace {

/// What the tensor-core kernels leave to the general one: blocks that no vector load may read, and k beyond 32-bit positions.
bool out_of_reach(const MatmulArgs& args) {
  const std::int64_t k = args.direction == Direction::forward ? args.index.cols : args.index.rows;
  constexpr std::int64_t kMostK = std::numeric_limits<std::int32_t>::max() - 128;
  return reinterpret_cast<std::uintptr_t>(args.values) % 16 != 0 || k > kMostK;
}

}  // namespace

int sm80_decode(const MatmulArgs& args) noexcept {
  if (args.m < 1 || args.m > kDecodeTokens || args.direction == Direction::dw) return cudaErrorInvalidValue;
  const bool forward = args.direction == Direction::forward;
  const bool tensor_cores = args.dtype != DType::f32 || args.tf32;
  if (tensor_cores && out_of_reach(args)) return sm80_mma_dds(args);
  switch (args.dtype) {
    case DType::bf16: return forward ? decode::launch_forward_bf16(args) : decode::launch_dx_bf16(args);
    case DType::f16: return forward ? decode::launch_forward_f16(args) : decode::launch_dx_f16(args);
    case DType::f32:
      if (!args.tf32) return decode::launch_ffma(args);
      return forward ? decode::launch_forward_tf32(args) : decode::launch_dx_tf32(args);
    case DType::f64: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda
