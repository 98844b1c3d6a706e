// The rows of this library for the verb bitmap_linear, in order of preference at equal predictions. LinearOf
// adds `dense` and `reference` after them.
#pragma once

#include <span>

#include "sparseloom/bitmap_linear.h"

namespace sparseloom::kernels {

/// Empty on other machines than x86-64.
std::span<const Row<BitmapLinear>> bitmap_cpu_rows();

}  // namespace sparseloom::kernels
