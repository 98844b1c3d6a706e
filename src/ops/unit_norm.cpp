// The norms between the steps of a recurrent cell, on the executor's device.
#include "sparseloom/unit_norm.h"

#include <algorithm>
#include <limits>
#include <string>

#include "core/check.h"
#include "kernels/recurrent/cpu/cells.h"
#include "kernels/recurrent/sm80/cells.h"
#include "ops/checks.h"
#include "runtime/cpu.h"
#include "runtime/cuda.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom {
namespace {

// Microseconds per unit on one thread: sums, then results, each at some four bytes a cycle.
constexpr double kUnitUs = 2e-3;

void check(const char* op, const UnitNorm& norm, const Executor& executor) {
  if (norm.n < 0 || norm.hidden < 0 || norm.groups < 1)
    core::fail(op, "sizes of 0 or more and one group or more", core::shape(norm.n, norm.hidden),
               "pass rows x units");
  constexpr std::int64_t kLongest = std::numeric_limits<std::int32_t>::max();  // units + stride is counted
  if (norm.stride < 1 || norm.stride > kLongest || norm.group < 0 || norm.group >= norm.groups)
    core::fail(op, "a stride of 1 to 2^31 - 1, and one of " + std::to_string(norm.groups) + " groups",
               "stride " + std::to_string(norm.stride) + ", group " + std::to_string(norm.group),
               "extra numbers reach every stride-th unit of one group");
  if (norm.side < 0 || (norm.side > 0 && norm.hidden % norm.side != 0))
    core::fail(op, "a side that divides the units", std::to_string(norm.side), "pass 0 for whole groups");
  const bool known = norm.dtype == DType::f32 || norm.dtype == DType::f16 || norm.dtype == DType::bf16;
  if (!known && (norm.dtype != DType::f64 || executor.device >= 0))
    core::fail(op, executor.device < 0 ? "f64, f32, f16 or bf16" : "f32, f16 or bf16", name_of(norm.dtype),
               "convert the module and its inputs with .float()");
}

}  // namespace

void unit_norm(const UnitNorm& norm, const Executor& executor) {
  check("unit_norm", norm, executor);
  if (executor.device >= 0) ops::require_gpu("unit_norm", executor);
  if (norm.n == 0 || norm.hidden == 0) return;
  core::require_memory("unit_norm",
                       {{"z", norm.z}, {"weight", norm.weight}, {"bias", norm.bias}, {"y", norm.y}});
  if (executor.device >= 0) {
#ifdef SPARSELOOM_HAVE_CUDA
    const runtime::CudaDeviceScope scope(executor.device);
    ops::require_queued("unit_norm", kernels::cuda::sm80_unit_norm(norm, executor.stream), executor);
#endif
    return;
  }
  const double us = static_cast<double>(norm.n * norm.groups * norm.hidden) * kUnitUs;
  runtime::parallel_tasks(runtime::if_worth_it(executor, us), norm.n,
                          [&](std::int64_t row) { kernels::cpu::unit_norm_row(norm, row); });
}

void unit_norm_gradient(const UnitNormGradient& norm, const Executor& executor) {
  check("unit_norm_gradient", norm.norm, executor);
  if (executor.device >= 0) ops::require_gpu("unit_norm_gradient", executor);
  if (norm.norm.n == 0 || norm.norm.hidden == 0) return;
  core::require_memory("unit_norm_gradient", {{"z", norm.norm.z},
                                              {"weight", norm.norm.weight},
                                              {"bias", norm.norm.bias},
                                              {"statistics", norm.norm.statistics},
                                              {"dy", norm.dy},
                                              {"dz", norm.dz},
                                              {"means", norm.means, executor.device >= 0}});
  if (executor.device >= 0) {
#ifdef SPARSELOOM_HAVE_CUDA
    const runtime::CudaDeviceScope scope(executor.device);
    ops::require_queued("unit_norm_gradient", kernels::cuda::sm80_unit_norm_gradient(norm, executor.stream),
                        executor);
#endif
    return;
  }
  const double us = static_cast<double>(norm.norm.n * norm.norm.groups * norm.norm.hidden) * 2 * kUnitUs;
  runtime::parallel_tasks(runtime::if_worth_it(executor, us), std::min(kUnitNormParts, norm.norm.n),
                          [&](std::int64_t part) { kernels::cpu::unit_norm_gradient_part(norm, part); });
}

}  // namespace sparseloom
