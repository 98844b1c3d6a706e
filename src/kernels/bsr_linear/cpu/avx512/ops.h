// The kernels of AVX-512: their functions, and their costs in the order of cost.h's members.
#pragma once

#include "kernels/bsr_linear/cpu/cost.h"
#include "kernels/bsr_linear/cpu/decode.h"
#include "kernels/bsr_linear/cpu/panel.h"

namespace sparseloom::kernels::cpu {

extern const PanelOps kAvx512Panel;
extern const DecodeOps kAvx512Decode;

inline constexpr PanelCosts kAvx512PanelCosts = {16,   1, {0, 1.07, 1.17, 1.12}, 3.5, 0.66, 1.5,
                                                 0.12, 0, {0, 1.14, 1.04, 1.04}, 1.3, 0.95};
inline constexpr DecodeCosts kAvx512ForwardCosts = {16, 0.05, 0.073, 0.03, 8.4, 4.1, 0};
inline constexpr DecodeCosts kAvx512DxCosts = {16, 0.12, 0.06, 0, 0.5, 0.1, 0.5};

}  // namespace sparseloom::kernels::cpu
