// The arguments of a kernel's launch: its operands (MatmulArgs) and its row's choice (Schedule).
#pragma once

#include "sparseloom/matmul_args.h"
#include "sparseloom/schedule.h"

namespace sparseloom {
struct Problem;  // sparseloom/plan.h, which no kernel includes: rows pass it on
}
