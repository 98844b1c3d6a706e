// The kernels of AVX-512: their functions, and their costs in the order of cost.h's members.
#pragma once

#include "kernels/bsr_linear/cpu/cost.h"
#include "kernels/bsr_linear/cpu/decode.h"
#include "kernels/bsr_linear/cpu/panel.h"

namespace sparseloom::kernels::cpu {

extern const PanelOps kAvx512Panel;
extern const DecodeOps kAvx512Decode;

inline constexpr PanelCosts kAvx512PanelCosts = {
    16,
    1,
    {{0, 1.02, 1.1, 1.1}, 5.62, 33, 0.014, 0.088, 1.77, 0.63, 0},
    {{0, 0.95, 1.06, 1.11}, 8.55, 29, 0.017, 0.27, 1.85, 1.1, 0},
    {{1.5, 0.96, 1.05}, {0, 1, 1.01, 1.13}, 1.02, 1.91},
};
inline constexpr DecodeCosts kAvx512ForwardCosts = {16, 0.015, 0.074, 0.007, 25, 3.08, 0, 0};
inline constexpr DecodeCosts kAvx512DxCosts = {16, 0.013, 0.072, 0.01, 2.04, 0.41, 3.83, 0.13};

}  // namespace sparseloom::kernels::cpu
