// The rates for rows from outside.
#include "sparseloom/rates.h"

#include <algorithm>

#include "kernels/machine_rates.h"
#include "ops/gemm_rate.h"
#include "sparseloom/deterministic.h"

namespace sparseloom {

Rates rates_for(Direction direction, DType dtype, std::int64_t m, std::int64_t rows, std::int64_t cols,
                const Executor& executor) {
  const plan::MachineRates& machine =
      is_deterministic() ? kernels::nominal_rates() : kernels::machine_rates();
  Rates rates{std::max(machine.f32_avx2, machine.f32_avx512), machine.copy_bytes, 0};
  if (executor.device >= 0 || is_scaled(dtype)) return rates;
  Problem problem;
  problem.direction = direction;
  problem.dtype = dtype;
  problem.m = m, problem.rows = rows, problem.cols = cols;
  problem.threads = std::max(1, executor.num_threads);
  rates.gemm_flops = ops::gemm_rate(problem, executor);
  return rates;
}

}  // namespace sparseloom
