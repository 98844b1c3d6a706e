// dW of fp32 on wgmma: a pass prepares the operands in the workspace, then the product reads them there.
//
//   sm90_wgmma_dw (TF32)   The pass transposes both operands (operands/transpose.h).
//   sm90_split_dw         The pass converts both to planes of bf16 (wgmma/split_bf16x3/tokens.h). After the
//                           product, another pass adds the values that the planes cannot hold.
//
// Both passes accept any alignment; TMA does not.
#include <cstddef>
#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/dw/f32_space.h"
#include "kernels/bsr_linear/sm90/wgmma/dw/instances.h"
#include "kernels/bsr_linear/sm90/wgmma/entry.h"
#include "kernels/bsr_linear/sm90/wgmma/split_bf16x3/tokens.h"
#include "kernels/shared/operands/transpose.h"

namespace sparseloom::kernels::cuda {
namespace wgmma::dw {
namespace {

/// Allocates buffers from the workspace, one after the other.
struct Cursor {
  std::byte* at;
  std::byte* take(std::size_t bytes) {
    std::byte* const buffer = at;
    at += aligned(bytes);
    return buffer;
  }
};

TokenMatrix matrix(const void* data, std::int64_t columns, std::int64_t stride) {
  return {static_cast<const float*>(data), columns, stride};
}

int transposed(const MatmulArgs& args, int most_blocks) noexcept {
  const IndexView& index = args.index;
  const TransposedSpace space({args.m, index.rows, index.cols});
  const std::int64_t stride = transposed_stride(args.m);
  // Lay out the workspace.
  Cursor workspace{args.workspace};
  float* const to[2] = {reinterpret_cast<float*>(workspace.take(space.dy)),
                        reinterpret_cast<float*>(workspace.take(space.x))};
  const Operands operands{{to[0], DType::f32, index.rows, args.m, stride * 4, true},
                          {to[1], DType::f32, index.cols, args.m, stride * 4, true}};
  if (!tensor_map_possible(operands.dy) || !tensor_map_possible(operands.x))
    return cudaErrorInvalidValue;  // nothing has been launched yet
  // Transpose, then multiply.
  const TokenMatrix from[2] = {matrix(args.a, index.rows, args.a_stride),
                               matrix(args.b, index.cols, args.b_stride)};
  if (const cudaError_t status = transpose_tokens(to, from, args.m, static_cast<cudaStream_t>(args.stream));
      status != cudaSuccess)
    return status;
  return dw_tf32(args, operands, workspace.at, most_blocks);
}

int bf16x3(const MatmulArgs& args, int most_blocks) noexcept {
  const IndexView& index = args.index;
  const Bf16x3Space space({args.m, index.rows, index.cols});
  const auto stream = static_cast<cudaStream_t>(args.stream);
  // Lay out the workspace.
  Cursor workspace{args.workspace};
  std::byte* const planes[2] = {workspace.take(space.dy.planes_bytes()),
                                workspace.take(space.x.planes_bytes())};
  const Operands operands{{planes[0], DType::bf16, space.dy.rows(), index.rows, space.dy.stride() * 2},
                          {planes[1], DType::bf16, space.x.rows(), index.cols, space.x.stride() * 2}};
  if (!tensor_map_possible(operands.dy) || !tensor_map_possible(operands.x))
    return cudaErrorInvalidValue;  // nothing has been launched yet
  auto* const dy_marks = reinterpret_cast<std::uint32_t*>(workspace.take(space.dy.marks_bytes()));
  auto* const x_marks = reinterpret_cast<std::uint32_t*>(workspace.take(space.x.marks_bytes()));
  auto* const any = reinterpret_cast<std::uint32_t*>(workspace.take(kAligned));
  // Convert, multiply, and add what the planes cannot hold.
  const Bf16x3Operand parts[2] = {{matrix(args.a, index.rows, args.a_stride), planes[0], dy_marks},
                                  {matrix(args.b, index.cols, args.b_stride), planes[1], x_marks}};
  if (const cudaError_t status = bf16x3_tokens(parts, args.m, any, stream); status != cudaSuccess)
    return status;
  if (const int status = dw_bf16x3(args, operands, workspace.at, most_blocks); status != 0) return status;
  return add_marked_tokens(static_cast<float*>(args.out), index, parts, args.m, any, stream);
}

}  // namespace

int dw_transposed(const MatmulArgs& args, const Schedule& schedule) noexcept {
  const int most_blocks = most_blocks_of(schedule, kStepTf32, args.index.block);
  return most_blocks > 0 ? transposed(args, most_blocks) : static_cast<int>(cudaErrorInvalidValue);
}

}  // namespace wgmma::dw

int sm90_split_dw(const MatmulArgs& args, const Schedule& schedule) noexcept {
  if (args.direction != Direction::dw || args.dtype != DType::f32) return cudaErrorInvalidValue;
  if (args.index.blocks == 0) return cudaErrorInvalidValue;
  const int most_blocks = wgmma::dw::most_blocks_of(schedule, wgmma::dw::kStepBf16x3, args.index.block);
  return most_blocks > 0 ? wgmma::dw::bf16x3(args, most_blocks) : static_cast<int>(cudaErrorInvalidValue);
}

}  // namespace sparseloom::kernels::cuda
