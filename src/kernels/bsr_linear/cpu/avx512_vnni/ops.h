// The kernels of AVX-512 VNNI: their functions, and their costs in the order of cost.h's members.
#pragma once

#include "kernels/bsr_linear/cpu/cost.h"
#include "kernels/bsr_linear/cpu/panel.h"

namespace sparseloom::kernels::cpu {

extern const PanelOps kAvx512VnniPanel;

inline constexpr PanelCosts kAvx512VnniPanelCosts = {
    16, 4, {{0, 1.41, 1.09, 1.18}, 4.8, 0, 0, 0, 2.0, 0.2, 0}, {}, {}};

}  // namespace sparseloom::kernels::cpu
