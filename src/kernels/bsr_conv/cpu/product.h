// A convolution as products of the panel kernels: forward and dW are one, dX is one per class of pixels
// (bsr_conv/walk.h). A product's weight has one block per stored block and tap of the class; its index is
// made in the workspace.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bsr_conv/cpu/pixels.h"
#include "kernels/bsr_linear/cpu/panel.h"
#include "sparseloom/bsr_conv.h"

namespace sparseloom::kernels::cpu {

/// The most classes of pixels of dX in a call. Each has a run in the workspace.
inline constexpr std::int64_t kMostClasses = 1024;
/// Bytes of the packed operands of a dW. Chunks of pixels are smaller than a linear layer's, since each pixel
/// is packed once per tap.
inline constexpr std::int64_t kConvOuterBytes = 8 << 20;

/// The shape of one product of a convolution.
struct ConvProduct {
  ConvProduct(const ConvShape& shape, Direction direction, std::int64_t number);

  std::int64_t taps() const { return std::int64_t{axis[0].taps} * axis[1].taps * axis[2].taps; }
  std::int64_t pixels(const ConvShape& shape) const {
    return std::int64_t{shape.images} * axis[0].walked * axis[1].walked * axis[2].walked;
  }
  /// The kernel's tap that is tap `i` of this product.
  std::int64_t tap(const ConvShape& shape, std::int64_t i) const;

  conv::Walk axis[3];
};

/// Products of a call: the classes of dX, otherwise 1.
std::int64_t products_of(const ConvShape& shape, Direction direction);

/// The problem of a product in the terms of a linear layer, with the layer's facts.
Problem problem_of(const bsr_conv::Problem& problem, const ConvProduct& product);

std::size_t conv_workspace(const PanelOps& ops, const bsr_conv::Problem& problem);
/// All directions. `runs` counts the call.
void run_conv(const PanelOps& ops, Runs& runs, const bsr_conv::Args& args, const Executor& executor);

}  // namespace sparseloom::kernels::cpu
