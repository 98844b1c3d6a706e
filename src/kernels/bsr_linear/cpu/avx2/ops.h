// The kernels of AVX2: their functions, and their costs in the order of cost.h's members.
#pragma once

#include "kernels/bsr_linear/cpu/cost.h"
#include "kernels/bsr_linear/cpu/decode.h"
#include "kernels/bsr_linear/cpu/panel.h"

namespace sparseloom::kernels::cpu {

extern const PanelOps kAvx2Panel;
extern const DecodeOps kAvx2Decode;

inline constexpr PanelCosts kAvx2PanelCosts = {8,    1, {0, 2.18, 1.27, 1.17}, 6.5, 0.78, 0.8,
                                               0.34, 0, {0, 1.5, 1.08, 1.08},  2.1, 1.15};
inline constexpr DecodeCosts kAvx2ForwardCosts = {8, 0.05, 0.11, 0, 10, 2.2, 0};
inline constexpr DecodeCosts kAvx2DxCosts = {8, 0.1, 0.09, 0.05, 1.4, 0.1, 0.76};

}  // namespace sparseloom::kernels::cpu
