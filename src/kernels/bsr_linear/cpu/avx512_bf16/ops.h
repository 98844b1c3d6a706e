// The kernels of AVX-512 BF16: their functions, and their costs in the order of cost.h's members.
#pragma once

#include "kernels/bsr_linear/cpu/cost.h"
#include "kernels/bsr_linear/cpu/decode.h"
#include "kernels/bsr_linear/cpu/panel.h"

namespace sparseloom::kernels::cpu {

extern const PanelOps kAvx512Bf16Panel;
extern const DecodeOps kAvx512Bf16Decode;  // forward of bf16 only

inline constexpr PanelCosts kAvx512Bf16PanelCosts = {16, 2,    {0, 1.41, 1.09, 1.18}, 4.8, 0.78, 0.1,
                                                     0,  0.27, {0, 1.45, 1.1, 1.05},  1.4, 0.41};
/// For a core that multiplies bf16 pairs at twice the FMA's rate. Fitted to 72 cells through Python on the
/// machine of the others, 2026-11-22.
inline constexpr DecodeCosts kAvx512Bf16ForwardCosts = {16, 0.09, 0.033, 0, 14, 2.5, 0};

}  // namespace sparseloom::kernels::cpu
