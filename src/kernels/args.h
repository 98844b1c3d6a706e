// What the launch of a kernel gets: its operands (MatmulArgs) and what its row chose (Schedule).
#pragma once

#include "sparseloom/matmul_args.h"
#include "sparseloom/schedule.h"

namespace sparseloom {
struct Problem;  // sparseloom/plan.h, which no kernel includes: rows pass it on
}
