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
    {{0, 1.21, 1.01, 1.09}, 7.63, 36, 0, 0, 1.22, 0.69, 0},
    {{0, 1.01, 1.36, 0.99}, 41, 33, 0, 0, 1.35, 0.73, 0.59},
    {{1.5, 1.57, 1.02}, {0, 1.45, 1.03, 1.03}, 1.45, 1.34},
};
/// For a core that multiplies bf16 pairs at twice the FMA's rate.
inline constexpr DecodeCosts kAvx512Bf16ForwardCosts = {16, 0.032, 0.03, 0.016, 13.5, 5.4, 0, 0};

}  // namespace sparseloom::kernels::cpu
