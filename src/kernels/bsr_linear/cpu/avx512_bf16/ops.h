// The kernels of AVX-512 BF16: their functions, and their costs in the order of cost.h's members.
#pragma once

#include "kernels/bsr_linear/cpu/cost.h"
#include "kernels/bsr_linear/cpu/decode.h"
#include "kernels/bsr_linear/cpu/panel.h"

namespace sparseloom::kernels::cpu {

extern const PanelOps kAvx512Bf16Panel;
extern const DecodeOps kAvx512Bf16Decode;  // forward of bf16 only

inline constexpr PanelCosts kAvx512Bf16PanelCosts = {
    16,
    2,
    {{0, 1.2, 1.06, 1.04}, 7.5, 36, 0, 0, 1.32, 0.76, 0},
    {{0, 1, 1.41, 1.05}, 44, 33, 0, 0, 1.16, 0.89, 0.75},
    {{1.5, 1.48, 1}, {0, 1.44, 1.05, 1}, 1.54, 1.89},
};
/// For a core that multiplies bf16 pairs at twice the FMA's rate.
inline constexpr DecodeCosts kAvx512Bf16ForwardCosts = {16, 0.032, 0.03, 0.016, 13.5, 5.4, 0, 0};

}  // namespace sparseloom::kernels::cpu
