// For layouts and kernels from outside of the library: the types and functions that they need.
// docs/add_a_kernel.md and docs/add_a_layout.md have examples.
#pragma once

#include "sparseloom/bsr_linear.h"
#include "sparseloom/executor.h"
#include "sparseloom/layout_concept.h"
#include "sparseloom/matmul_args.h"
#include "sparseloom/plan.h"
#include "sparseloom/verb.h"
