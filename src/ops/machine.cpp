// Machines with their measured rates, and the selection of a row on them.
#include "ops/machine.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "core/check.h"
#include "core/shared_by_threads.h"
#include "kernels/bsr_linear/cpu/rates.h"
#include "kernels/machine_rates.h"
#include "kernels/shared/cost/gpu_rates.h"
#include "ops/measured_rate.h"
#include "ops/rows.h"
#include "plan/cache.h"
#include "plan/registry.h"
#include "runtime/cpu.h"
#include "runtime/cuda.h"
#include "sparseloom/deterministic.h"

namespace sparseloom {
namespace {

// Refuses a device on which no kernel of this build could run, once instead of in every row.
void check_device(int device) {
  const std::string name = "cuda:" + std::to_string(device);
  if (!runtime::cuda_compiled())
    core::fail("plan", "a build with CUDA kernels", "operands on " + name + " and a build without them",
               "build with nvcc (CUDA 12 or newer) on PATH, or move module and input with .cpu()");
  const int sm = runtime::cuda_device(device).sm;
  if (sm < 80)
    core::fail("plan", "a GPU of compute capability 8.0 or newer",
               sm == 0 ? name + ", which is not there"
                       : name + " of " + std::to_string(sm / 10) + "." + std::to_string(sm % 10),
               "move module and input with .cpu(): the CPU kernels run everywhere");
}

// Plan::machine on the CPU, for example "avx2 (forced by SPARSELOOM_ISA; this CPU runs up to avx512_bf16);
// per core f32_avx2 118 Gflop/s, copy 21 GB/s; rates read from <file>". Rates of instruction sets that are
// not in force are 0 and left out.
std::string machine_line(const plan::MachineRates& rates, const std::string& origin) {
  std::string text = runtime::name_of(runtime::active_isa());
  if (!runtime::forced_isa().empty())
    text += std::string(" (forced by SPARSELOOM_ISA; this CPU runs up to ") +
            runtime::name_of(runtime::detected_isa()) + ")";
  text += "; per core ";
  for (const kernels::RateField& field : kernels::rate_fields()) {
    const bool bytes = field.rate == &plan::MachineRates::copy_bytes;
    if (rates.*field.rate <= 0) continue;
    char number[32];
    std::snprintf(number, sizeof number, "%.3g", rates.*field.rate / 1e9);
    const char* unit = std::string_view(field.name).starts_with("i8_") ? " Gop/s, " : " Gflop/s, ";
    text += bytes ? "copy " + std::string(number) + " GB/s" : std::string(field.name) + " " + number + unit;
  }
  return text + "; rates " + origin;
}

// Plan::machine on CUDA, for example "cuda:0; memory 4.19 TB/s, L2 8 TB/s, mma.sync 640 Tflop/s; rates read
// from <file>".
std::string gpu_line(int device, const kernels::cuda::KnownGpuRates& known) {
  std::string text = "cuda:" + std::to_string(device) + "; ";
  const plan::GpuRates& rates = known.rates;
  if (rates.memory_bytes <= 0) return text + "rates taken from its clocks and widths, " + known.origin;
  char numbers[96];
  std::snprintf(numbers, sizeof numbers, "memory %.3g TB/s, L2 %.3g TB/s, mma.sync %.3g Tflop/s; rates ",
                rates.memory_bytes / 1e12, rates.l2_bytes / 1e12, rates.tensor_flops / 1e12);
  return text + numbers + known.origin;
}

}  // namespace

ops::KnownMachine ops::known_machine(const Executor& executor) {
  KnownMachine known;
  if (executor.device < 0) {
    known.machine.isa = runtime::active_isa();
    const plan::MachineRates& rates =
        is_deterministic() ? kernels::nominal_rates() : kernels::machine_rates();
    known.machine.rates = rates;
    known.line =
        machine_line(rates, is_deterministic() ? "nominal: plans are deterministic (docs/numerics.md)"
                                               : kernels::machine_rates_origin());
    return known;
  }
  check_device(executor.device);
  const kernels::cuda::KnownGpuRates gpu =
      is_deterministic() ? kernels::cuda::KnownGpuRates{{}, "since plans are deterministic"}
                         : kernels::cuda::gpu_rates(executor.device, executor.stream);
  known.machine.cuda = runtime::cuda_device(executor.device);
  known.machine.gpu = gpu.rates;
  known.machine.clusters = kernels::cuda::gpu_clusters(executor.device);
  known.line = gpu_line(executor.device, gpu);
  return known;
}

double ops::peak_flops(DType dtype, int threads, const plan::MachineRates& rates) {
  // 16-bit products may run on AMX behind the lent GEMM, which cannot be timed here; it was measured at 13
  // times the fp32 FMA rate, hence 16.
  constexpr double kMostOverFma = 16;
  const double fma = std::max(rates.f32_avx2, rates.f32_avx512);
  return fma * (size_of(dtype) == 2 ? kMostOverFma : 1) * std::max(1, threads);
}

plan::Selected plan::select(const AnyProblem& problem, const Executor& executor, std::string_view forced) {
  ops::enter_own_rows();
  const ops::KnownMachine known = ops::known_machine(executor);
  Selected selected = select(problem, known.machine, forced);
  selected.choice.machine = known.line;
  return selected;
}

std::shared_ptr<const void> plan::cached(const char* verb, const ProblemKey& key, std::string_view forced,
                                         std::shared_ptr<const void> (*make)(const void* context),
                                         const void* context) {
  ops::enter_own_rows();  // they are part of the key
  Cache& cache = shared_by_threads<Cache>();
  // a plan that a disturbed rate decided is made again when that rate may be measured again
  const CacheKey whole{verb, key, forced, row_count() + (ops::rate_generation() << 16)};
  if (auto cached = cache.find(whole)) return cached;
  return cache.keep(whole, make(context));
}

}  // namespace sparseloom
