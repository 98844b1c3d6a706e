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
    {{0, 1.48, 1.04, 1.1}, 21, 197, 0.03, 0.32, 0.69, 0.64, 0},
    {{0, 1.78, 1.21, 1.2}, 40, 72, 0.03, 0.51, 1.04, 0.88, 0},
    {{1.5, 1.1, 1.09}, {0, 1.35, 1, 1.11}, 1.6, 2.41},
};
inline constexpr DecodeCosts kAvx2ForwardCosts = {8, 0.072, 0.091, 0.018, 26, 1.1, 0, 0};
inline constexpr DecodeCosts kAvx2DxCosts = {8, 0.083, 0.045, 0.011, 4, 0.4, 1.93, 0.43};

}  // namespace sparseloom::kernels::cpu
