// dW of fp32 on wgmma: a pass prepares the operands in the workspace, then the product reads them there.
//
//   sm90_wgmma_sdd (TF32)   The pass transposes both operands (transpose_tokens.h).
//   sm90_bf16x3_sdd         The pass converts both to planes of bf16 (fp32_bf16x3/tokens.h). After the
//                           product, another pass adds the values that the planes cannot hold.
//
// Both passes read operands of any alignment, which TMA does not.
#include <cstddef>
#include <cstdint>

#include "kernels/bsr_linear/sm90/dw_wgmma/instances.h"
#include "kernels/bsr_linear/sm90/dw_wgmma_regions/entry.h"
#include "kernels/bsr_linear/sm90/fp32_bf16x3/entry.h"
#include "kernels/bsr_linear/sm90/fp32_bf16x3/tokens.h"
#include "kernels/bsr_linear/sm90/operands/transpose_tokens.h"
#include "runtime/cuda.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda {
namespace wgmma_sdd {
namespace {

constexpr std::size_t kAligned = 128;  // alignment of each buffer in the workspace

constexpr std::size_t aligned(std::size_t bytes) { return (bytes + kAligned - 1) / kAligned * kAligned; }

struct Shape {
  std::int64_t m, rows, cols;
};

/// Workspace of the transposed operands.
struct TransposedSpace {
  std::size_t dy, x;
  explicit TransposedSpace(const Shape& shape)
      : dy(aligned(transposed_bytes(shape.rows, shape.m))),
        x(aligned(transposed_bytes(shape.cols, shape.m))) {}
  std::size_t bytes() const { return dy + x; }
};

/// Workspace of the bf16x3 operands: planes, marks, and the flag that there is a mark.
struct Bf16x3Space {
  Bf16x3Tokens dy, x;
  explicit Bf16x3Space(const Shape& shape) : dy{shape.rows, shape.m}, x{shape.cols, shape.m} {}
  std::size_t bytes() const {
    return aligned(dy.planes_bytes()) + aligned(x.planes_bytes()) + aligned(dy.marks_bytes()) +
           aligned(x.marks_bytes()) + kAligned;
  }
};

/// Allocates buffers from the workspace, one after the other.
struct Cursor {
  std::byte* at;
  std::byte* take(std::size_t bytes) {
    std::byte* const taken = at;
    at += aligned(bytes);
    return taken;
  }
};

Size size_of(const StepShape& step, const MatmulArgs& args) {
  const IndexView& index = args.index;
  return size_of_product(step, index.block, index.block_rows(), index.blocks, args.m,
                         runtime::cuda_device(args.device).multiprocessors);
}

TokenMatrix matrix(const void* data, std::int64_t columns, std::int64_t stride) {
  return {static_cast<const float*>(data), columns, stride};
}

int transposed(const MatmulArgs& args) noexcept {
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
  return dw_tf32(args, operands, workspace.at, deal(size_of(kStepTf32, args)).most_blocks);
}

int bf16x3(const MatmulArgs& args) noexcept {
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
  if (const int status =
          dw_bf16x3(args, operands, workspace.at, deal(size_of(kStepBf16x3, args)).most_blocks);
      status != 0)
    return status;
  return add_marked_tokens(static_cast<float*>(args.out), index, parts, args.m, any, stream);
}

/// Bytes of workspace for the partial sums.
std::size_t parts_bytes(const StepShape& step, const Problem& p, int multiprocessors) {
  const Size size = size_of_product(step, p.block, (p.rows + p.block.rows - 1) / p.block.rows, p.blocks, p.m,
                                    multiprocessors);
  return workspace_bytes(size, Way{false, deal(size), {}});
}

}  // namespace

int dw_transposed(const MatmulArgs& args) noexcept { return transposed(args); }

std::size_t transposed_workspace(const Problem& p, int multiprocessors) noexcept {
  return TransposedSpace({p.m, p.rows, p.cols}).bytes() + parts_bytes(kStepTf32, p, multiprocessors);
}

}  // namespace wgmma_sdd

int sm90_bf16x3_sdd(const MatmulArgs& args) noexcept {
  if (args.direction != Direction::dw || args.dtype != DType::f32) return cudaErrorInvalidValue;
  if (args.index.blocks == 0) return cudaErrorInvalidValue;
  return wgmma_sdd::bf16x3(args);
}

std::size_t sm90_bf16x3_sdd_workspace(const Problem& p, int multiprocessors) noexcept {
  return wgmma_sdd::Bf16x3Space({p.m, p.rows, p.cols}).bytes() +
         wgmma_sdd::parts_bytes(wgmma_sdd::kStepBf16x3, p, multiprocessors);
}

bool sm90_bf16x3_sdd_takes(const Problem& p) noexcept {
  return Bf16x3Tokens{p.rows, p.m}.rows() < std::int64_t{1} << 31;
}

}  // namespace sparseloom::kernels::cuda
