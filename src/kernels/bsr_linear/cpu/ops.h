// The kernels of each instruction set: their functions, and their costs in the order of cost.h's members.
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

extern const PanelOps kAvx512VnniPanel;

inline constexpr PanelCosts kAvx512VnniPanelCosts = {
    16, 4, {{0, 1.41, 1.09, 1.18}, 4.8, 0, 0, 0, 2.0, 0.2, 0}, {}, {}};

}  // namespace sparseloom::kernels::cpu
