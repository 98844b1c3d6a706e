// What the launch of a kernel gets: its operands (MatmulArgs) and what its row chose (Schedule).
#pragma once

#include "sparseloom/executor.h"
#include "sparseloom/extension.h"
#include "sparseloom/schedule.h"
