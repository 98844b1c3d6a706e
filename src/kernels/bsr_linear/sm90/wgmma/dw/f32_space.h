// The workspace that the pass before dW of fp32 (f32.cu) writes. The partial sums follow it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/split_bf16x3/tokens.h"
#include "kernels/shared/operands/transpose.h"

namespace sparseloom::kernels::cuda::wgmma::dw {

inline constexpr std::size_t kAligned = 128;  // alignment of each buffer in the workspace

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

/// Workspace of the bf16x3 operands: planes, marks, and a flag that says whether there is any mark.
struct Bf16x3Space {
  Bf16x3Tokens dy, x;
  explicit Bf16x3Space(const Shape& shape) : dy{shape.rows, shape.m}, x{shape.cols, shape.m} {}
  std::size_t bytes() const {
    return aligned(dy.planes_bytes()) + aligned(x.planes_bytes()) + aligned(dy.marks_bytes()) +
           aligned(x.marks_bytes()) + kAligned;
  }
};

}  // namespace sparseloom::kernels::cuda::wgmma::dw
