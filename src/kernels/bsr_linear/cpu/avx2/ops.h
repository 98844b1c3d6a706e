// The kernels of AVX2: their functions, and their costs in the order of cost.h's members.
#pragma once

#include "kernels/bsr_linear/cpu/cost.h"
#include "kernels/bsr_linear/cpu/decode.h"
#include "kernels/bsr_linear/cpu/panel.h"

namespace sparseloom::kernels::cpu {

extern const PanelOps kAvx2Panel;
extern const DecodeOps kAvx2Decode;

inline constexpr PanelCosts kAvx2PanelCosts = {
    8,
    1,
    {{0, 1.48, 1.06, 1.1}, 21, 208, 0.03, 0.36, 0.71, 0.66, 0},
    {{0, 1.81, 1.21, 1.18}, 43, 69, 0.03, 0.54, 0.97, 0.97, 0},
    {{1.5, 1.1, 1.1}, {0, 1.35, 1, 1.09}, 1.6, 3.4},
};
inline constexpr DecodeCosts kAvx2ForwardCosts = {8, 0.072, 0.091, 0.018, 26, 1.1, 0, 0};
inline constexpr DecodeCosts kAvx2DxCosts = {8, 0.083, 0.045, 0.011, 4, 0.4, 1.93, 0.43};

}  // namespace sparseloom::kernels::cpu
