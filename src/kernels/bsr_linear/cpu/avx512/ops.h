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
    {{0, 1, 1.1, 1.11}, 5.6, 33, 0.014, 0.086, 1.64, 0.65, 0},
    {{0, 1, 1.02, 1.11}, 8.6, 28, 0.017, 0.29, 1.27, 1.12, 0},
    {{1.5, 1.1, 1.01}, {0, 1, 1.01, 1.04}, 1, 2.85},
};
inline constexpr DecodeCosts kAvx512ForwardCosts = {16, 0.015, 0.07, 0.007, 24, 2.9, 0, 0};
inline constexpr DecodeCosts kAvx512DxCosts = {16, 0.013, 0.073, 0.01, 2, 0.41, 2.9, 0.13};

}  // namespace sparseloom::kernels::cpu
