// CPUs that halve vectors of 512 bits, for costs in cycles that were fitted to one that does not.
#pragma once

#include <algorithm>

#include "plan/machine.h"

namespace sparseloom::kernels {

/// Cycles of an instruction on 512 bits over those of a Zen 5, which takes them whole: 2 on a Zen 4.
inline double halved_vectors(const plan::MachineRates& rates) noexcept {
  return rates.f32_avx512 > 0 ? std::max(1.0, 2 * rates.f32_avx2 / rates.f32_avx512) : 1;
}

}  // namespace sparseloom::kernels
