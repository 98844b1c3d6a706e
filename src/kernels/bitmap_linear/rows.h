// The rows of this library for the verbs bitmap_linear and bitmap_scaled_linear, in order of preference at
// equal predictions. LinearOf adds `dense` and `reference` after the former.
#pragma once

#include <span>

#include "sparseloom/bitmap_linear.h"
#include "sparseloom/scaled_of.h"

namespace sparseloom::kernels {

/// Empty on other machines than x86-64.
std::span<const Row<BitmapLinear>> bitmap_cpu_rows();

/// dW on any machine.
extern const Row<BitmapLinear> kBitmapDenseDw;

/// All rows of the CPU, `expand` and `reference` among them.
std::span<const Row<BitmapScaled>> bitmap_scaled_cpu_rows();

}  // namespace sparseloom::kernels
