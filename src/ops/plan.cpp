// make_plan: checks the problem, looks in the cache, measures the machine and chooses a kernel.
#include <algorithm>
#include <cstdio>
#include <limits>
#include <string_view>

#include "core/check.h"
#include "kernels/bsr_linear/cpu/rates.h"
#include "kernels/bsr_linear/cuda/rates.h"
#include "kernels/registry.h"
#include "ops/gemm_rate.h"
#include "ops/shared_by_threads.h"
#include "plan/cache.h"
#include "plan/seen_indices.h"
#include "plan/select.h"
#include "runtime/cpu.h"
#include "runtime/cuda.h"
#include "sparseloom/ops.h"

namespace sparseloom {
namespace {

// Upper bound on the flops of any dense product in this dtype, all threads together. 16-bit products may run
// on AMX behind the lent GEMM, which nothing here can time; it was measured at 13 times the fp32 FMA rate,
// hence 16.
constexpr double kMostOverFma = 16;
double peak_flops(const Problem& problem, const plan::MachineRates& rates) {
  const double fma = std::max(rates.f32_avx2, rates.f32_avx512);
  return fma * (size_of(problem.dtype) == 2 ? kMostOverFma : 1) * std::max(1, problem.threads);
}

// Whether to measure the lent GEMM, which costs milliseconds. It is done only if dense could win, that is if
// the best sparse prediction is slower than the dense product at the machine's peak.
bool dense_could_win(const Problem& problem, const plan::Machine& machine, const std::string& kernel) {
  if (!problem.can_gemm || problem.strict || problem.direction == Direction::dw || problem.device >= 0)
    return false;
  if (is_scaled(problem.dtype)) return false;  // the scaled GEMM is lent for CUDA devices only
  if (kernel == "dense") return true;
  if (!kernel.empty()) return false;
  double best = std::numeric_limits<double>::infinity();
  for (const plan::KernelInfo& row : kernels::registry_info())
    if (plan::refusal_of(row, problem, machine).empty())
      best = std::min(best, plan::predicted_us(row, problem, machine));
  const double peak = peak_flops(problem, machine.rates);
  if (peak <= 0) return true;
  return best > 1e6 * 2.0 * static_cast<double>(problem.m) * static_cast<double>(problem.rows) *
                    static_cast<double>(problem.cols) / peak;
}

// 2^17 products of (-128)^2 add up to 2^31, one more than int32 holds.
constexpr std::int64_t kInt8Inputs = (std::int64_t{1} << 17) - 1;

void check_scaled(const Problem& problem) {
  const std::string dtype = name_of(problem.dtype);
  if (problem.direction != Direction::forward)
    core::fail("plan", "direction forward: " + dtype + " products have no gradients",
               name_of(problem.direction), "train in f32, f16 or bf16 and quantize the trained weight");
  if (problem.out != DType::bf16 && problem.out != DType::f32)
    core::fail("plan", "an output of bf16 or f32 for " + dtype + " operands", name_of(problem.out),
               "set Problem::out (out_dtype) to one of them");
  if (problem.dtype == DType::i8 && problem.cols > kInt8Inputs)
    core::fail(
        "plan",
        "int8 operands of at most " + std::to_string(kInt8Inputs) + " input features, whose sums fit int32",
        std::to_string(problem.cols), "split the layer along its inputs, or use bf16");
}

void check_problem(const Problem& problem, const IndexView& index) {
  const bool same = problem.rows == index.rows && problem.cols == index.cols &&
                    problem.block == index.block && problem.blocks == index.blocks;
  if (!same)
    core::fail("plan",
               "a problem of the index's shape " + core::shape(index.rows, index.cols) + " with " +
                   std::to_string(index.blocks) + " blocks",
               core::shape(problem.rows, problem.cols) + " with " + std::to_string(problem.blocks),
               "fill the problem from the same matrix");
  if (problem.m < 0)
    core::fail("plan", "m >= 0", "m = " + std::to_string(problem.m), "pass the number of tokens");
  if (problem.direction != Direction::forward && (problem.bias || problem.activation != Activation::none))
    core::fail("plan", "bias and activation on forward only", name_of(problem.direction),
               "apply them in the forward product");
  if (problem.residual && (problem.direction != Direction::forward || is_scaled(problem.dtype)))
    core::fail("plan", "a residual on forward of f32, f16, bf16 or f64 only",
               std::string(name_of(problem.direction)) + " of " + name_of(problem.dtype),
               "add it in a pass of your own");
  if (problem.accumulate && (problem.direction != Direction::dw || problem.dtype == DType::f64))
    core::fail("plan", "accumulate, into fp32, on dw of f32, f16 or bf16 only",
               std::string(name_of(problem.direction)) + " of " + name_of(problem.dtype),
               "add the product in a pass of your own");
  if (is_scaled(problem.dtype)) check_scaled(problem);
}

// Refuses what no kernel of this build could do on that device, once instead of in every row.
void check_device(const Problem& problem) {
  if (problem.device < 0) return;
  const std::string name = "cuda:" + std::to_string(problem.device);
  if (!runtime::cuda_compiled())
    core::fail("plan", "a build with CUDA kernels", "operands on " + name + " and a build without them",
               "build with nvcc (CUDA 12 or newer) on PATH, or move module and input with .cpu()");
  const int sm = runtime::cuda_device(problem.device).sm;
  if (sm < 80)
    core::fail("plan", "a GPU of compute capability 8.0 or newer",
               sm == 0 ? name + ", which is not there"
                       : name + " of " + std::to_string(sm / 10) + "." + std::to_string(sm % 10),
               "move module and input with .cpu(): the CPU kernels run everywhere");
  if (problem.dtype == DType::f64)
    core::fail("plan", "f32, f16 or bf16 on CUDA", "f64", "convert with .float(), or compute f64 on the CPU");
}

// Plan::machine on the CPU, for example "avx2 (forced by SPARSELOOM_ISA; this CPU runs up to avx512_bf16);
// per core f32_avx2 118 Gflop/s, copy 21 GB/s; rates read from <file>". Rates of instruction sets that are
// not in force are 0 and left out.
std::string machine_line(const plan::MachineRates& rates) {
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
  return text + "; rates " + kernels::machine_rates_origin();
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

// Validates an index of host memory that this thread has not seen. It throws Error.
void require_valid(const IndexView& index) {
  static thread_local plan::SeenIndices seen;
  if (seen.contains(index)) return;
  validate_index("plan", index.rows, index.cols, index.block,
                 {index.crow, static_cast<std::size_t>(index.block_rows() + 1)},
                 {index.col, static_cast<std::size_t>(index.blocks)});
  seen.add(index);
}

// The measured rates and limits that the rows' refusals and predictions need.
plan::Machine machine_for(const Problem& problem, const plan::GpuRates& gpu, const Executor& executor,
                          const std::string& kernel) {
  plan::Machine machine;
  if (problem.device >= 0) {
    machine.cuda = runtime::cuda_device(problem.device);
    machine.gpu = gpu;
    return machine;
  }
  machine.isa = runtime::active_isa();
  machine.rates = kernels::machine_rates();
  if (dense_could_win(problem, machine, kernel)) machine.rates.gemm_flops = ops::gemm_rate(problem, executor);
  return machine;
}

}  // namespace

Problem describe(const IndexView& index, DType dtype, Direction direction, std::int64_t m) {
  Problem problem;
  problem.direction = direction;
  problem.dtype = dtype;
  problem.m = m;
  problem.rows = index.rows;
  problem.cols = index.cols;
  problem.block = index.block;
  problem.blocks = index.blocks;
  // The matrices [m, cols] and [m, rows] with nothing between their rows. 8-bit products write bf16 or f32.
  const DType written = is_scaled(dtype) ? DType::bf16 : dtype;
  const auto aligned = [&](DType type, std::int64_t features) {
    return is_aligned({nullptr, type, m, features, features});
  };
  switch (direction) {
    case Direction::forward:
      problem.aligned = aligned(dtype, index.cols), problem.out_aligned = aligned(written, index.rows);
      break;
    case Direction::dx:
      problem.aligned = aligned(dtype, index.rows), problem.out_aligned = aligned(written, index.cols);
      break;
    case Direction::dw: problem.aligned = aligned(dtype, index.rows) && aligned(dtype, index.cols); break;
  }
  return problem;
}

std::shared_ptr<const Plan> make_plan(const Problem& given, const IndexView& index, const Executor& executor,
                                      const std::string& kernel) {
  // Complete the problem, which is part of the cache key, from the executor.
  Problem problem = given;
  problem.device = executor.device;
  problem.threads = problem.device >= 0 ? 1 : std::max(1, executor.num_threads);
  problem.can_gemm = is_scaled(problem.dtype) ? executor.scaled_gemm != nullptr : executor.gemm != nullptr;
  if (!is_scaled(problem.dtype)) problem.out = problem.dtype;
  // Ignore these flags where they have no effect, so that there is one plan and not two.
  problem.tf32 = given.tf32 && problem.device >= 0 && problem.dtype == DType::f32;
  problem.fast_accum = given.fast_accum && problem.device >= 0 && problem.dtype == DType::f8e4m3;
  if (problem.device < 0) problem.facts = {}, problem.aligned = problem.out_aligned = true;
  if (problem.direction == Direction::dw) problem.out_aligned = true;  // dvalues count as read
  check_problem(problem, index);
  // Validate on the CPU, so that indices which do not fit the problem (an x with other features, say) cannot
  // reach a kernel. On a device that would take a copy and a wait, also inside the capture of a graph: there
  // the index was validated before.
  if (problem.device < 0) require_valid(index);
  return shared_by_threads<plan::Cache>().get({problem, kernel, kernels::registry().size()}, [&] {
    check_device(problem);
    const bool on_cpu = problem.device < 0;
    // Choose the kernel.
    const auto gpu =
        on_cpu ? kernels::cuda::KnownGpuRates{} : kernels::cuda::gpu_rates(problem.device, executor.stream);
    const plan::Machine machine = machine_for(problem, gpu.rates, executor, kernel);
    Plan plan = plan::select(problem, kernels::registry_info(), machine, kernel);
    plan.machine = on_cpu ? machine_line(kernels::machine_rates()) : gpu_line(problem.device, gpu);
    const plan::KernelInfo& row = kernels::registry_info()[static_cast<std::size_t>(plan.kernel)];
    if (problem.direction != Direction::dw && row.block_row_groups != nullptr)
      plan.groups = row.block_row_groups(problem, machine);
    return plan;
  });
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const plan::KernelInfo& row : kernels::registry_info()) names.emplace_back(row.name);
  return names;
}

}  // namespace sparseloom
