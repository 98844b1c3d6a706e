// What a call will take, from the problem and the machine's measured rates: the plan ranks candidates by it.
#pragma once

#include <cstdint>

#include "plan/candidate.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cpu {

/// `peak`: flops per second of one core for the kernel's product, 0 when not measured.
double predict_panel_us(const Problem& problem, double peak, double copy_bytes, int lanes, int depth_step);
double predict_decode_us(const Problem& problem, double peak, double copy_bytes, int lanes);

}  // namespace sparseloom::kernels::cpu
