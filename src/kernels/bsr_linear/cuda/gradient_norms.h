// The entries that compute block norms of dW without dW (sparseloom/gradient_norms.h), and the instances of
// sm80/dw_norms and sm90/dw_norms. rows.h has the contract of entries. They are not rows of the plan:
// ops/gradient_norms.cpp chooses between the two.
#pragma once

#include <cstdint>

#include "sparseloom/layout.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom::kernels::cuda {

/// norms [block rows * block columns] <- the norms of the blocks of dy^T x, for dy [m, rows] and x [m, cols]
/// of one dtype. dy and x have strides of at least their columns even if m is 1.
struct GradientNorms {
  ConstMatrixView dy, x;
  BlockShape block;
  BlockNorm norm;
  float* norms;
  int device;
  void* stream;
};

/// Supports f16 and bf16 on compute capability 9.0, at least one token, fewer than 2^31 rows and columns, and
/// rows at multiples of 16 bytes.
int sm90_gradient_norms(const GradientNorms& call) noexcept;

/// Supports f32, f16 and bf16, of any sizes and alignment.
int sm80_gradient_norms(const GradientNorms& call) noexcept;

// The instances of sm80/dw_norms and sm90/dw_norms, one per dtype.
namespace mma_norms {

int norms_bf16(const GradientNorms& call) noexcept;
int norms_f16(const GradientNorms& call) noexcept;
int norms_f32(const GradientNorms& call) noexcept;

}  // namespace mma_norms
namespace wgmma_norms {

int norms_bf16(const GradientNorms& call) noexcept;
int norms_f16(const GradientNorms& call) noexcept;

}  // namespace wgmma_norms
}  // namespace sparseloom::kernels::cuda
