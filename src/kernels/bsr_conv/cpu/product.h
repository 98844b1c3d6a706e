// A convolution as products of the panel kernels: forward and dW are one, dX is one for each class of pixels
// (bsr_conv/walk.h). A product's weight has a block for each stored block and tap of the class; its
// index is made in the workspace.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bsr_conv/cpu/pixels.h"
#include "kernels/bsr_linear/cpu/panel.h"
#include "sparseloom/bsr_conv.h"

namespace sparseloom::kernels::cpu {

/// Classes of pixels of dX that a call may have. Each has a run in the workspace.
inline constexpr std::int64_t kMostClasses = 1024;
/// Bytes of the packed operands of a dW. Chunks of pixels are smaller than a linear layer's, since each pixel
/// is packed once for each tap.
inline constexpr std::int64_t kConvOuterBytes = 8 << 20;

/// What a convolution's shape says of one product.
struct ConvProduct {
  ConvProduct(const ConvShape& shape, Direction direction, std::int64_t number);

  std::int64_t taps() const { return std::int64_t{axis[0].taps} * axis[1].taps * axis[2].taps; }
  std::int64_t pixels(const ConvShape& shape) const {
    return std::int64_t{shape.images} * axis[0].walked * axis[1].walked * axis[2].walked;
  }
  /// The tap of the kernel that tap `i` of this product is.
  std::int64_t tap(const ConvShape& shape, std::int64_t i) const;

  conv::Walk axis[3];
};

/// Products of a call: classes of dX, else 1.
std::int64_t products_of(const ConvShape& shape, Direction direction);

/// The problem of a product, as a linear layer has it. Its facts are those of the layer's.
Problem problem_of(const bsr_conv::Problem& problem, const ConvProduct& product);

std::size_t conv_workspace(const PanelOps& ops, const bsr_conv::Problem& problem);
/// All directions. `runs` counts the call.
void run_conv(const PanelOps& ops, Runs& runs, const bsr_conv::Args& args, const Executor& executor);

}  // namespace sparseloom::kernels::cpu
