// The rows of this library's CPU kernels for the verb bsr_conv.
#pragma once

#include <span>

#include "sparseloom/bsr_conv.h"

namespace sparseloom::kernels {

/// In order of preference at equal predictions. Empty on other machines than x86-64.
std::span<const Row<bsr_conv::Conv>> conv_cpu_rows();

}  // namespace sparseloom::kernels
