// The machine that a plan is made for, with its measured rates, and its line in plans.
#pragma once

#include <string>

#include "plan/machine.h"
#include "sparseloom/dtype.h"
#include "sparseloom/executor.h"

namespace sparseloom::ops {

struct KnownMachine {
  plan::Machine machine;  // without gemm_flops, which depend on the problem
  std::string line;       // Choice::machine
};

/// Throws Error if the executor's device has no kernels, or if the CPU's instruction set was forced wrongly.
KnownMachine known_machine(const Executor& executor);

/// Upper bound on the flops of any dense product in this dtype on the CPU, all threads together.
double peak_flops(DType dtype, int threads, const plan::MachineRates& rates);

}  // namespace sparseloom::ops
