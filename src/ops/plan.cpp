// make_plan: checks the problem, looks in the cache, measures the machine and chooses a kernel.
#include <algorithm>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "kernels/bsr_linear/verb.h"
#include "kernels/registry.h"
#include "ops/gemm_rate.h"
#include "ops/machine.h"
#include "plan/seen_indices.h"
#include "sparseloom/ops.h"

namespace sparseloom {
namespace {

using kernels::Linear;

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
  const double best = kernels::bsr_linear::fastest_us(problem, machine);
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

// Validates an index of host memory that this thread has not seen. It throws Error.
void require_valid(const IndexView& index) {
  static thread_local plan::SeenIndices seen;
  if (seen.contains(index)) return;
  validate_index("plan", index.rows, index.cols, index.block,
                 {index.crow, static_cast<std::size_t>(index.block_rows() + 1)},
                 {index.col, static_cast<std::size_t>(index.blocks)});
  seen.add(index);
}

// Chooses a kernel for a problem that was checked.
Plan choose(const Problem& problem, const Executor& executor, const std::string& kernel) {
  if (problem.device >= 0 && problem.dtype == DType::f64)
    core::fail("plan", "f32, f16 or bf16 on CUDA", "f64", "convert with .float(), or compute f64 on the CPU");
  ops::KnownMachine known = ops::known_machine(executor);
  if (dense_could_win(problem, known.machine, kernel))
    known.machine.rates.gemm_flops = ops::gemm_rate(problem, executor);
  plan::Selected selected = plan::select(plan::any<Linear>(problem), known.machine, kernel);
  Choice& choice = selected.choice;
  Plan made;
  made.problem = problem;
  made.kernel = choice.kernel;
  made.kernel_name = std::move(choice.kernel_name);
  made.candidates = std::move(choice.candidates);
  made.workspace_bytes = choice.workspace_bytes;
  made.caveat = std::move(choice.caveat);
  made.machine = std::move(known.line);
  std::memcpy(&made.schedule, selected.offer.schedule, sizeof made.schedule);
  return made;
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
  kernels::registry();  // its rows are part of the key
  const auto make = [&] { return choose(problem, executor, kernel); };
  return plan::cached_as<Plan>(Linear::kName, Linear::key(problem), kernel, make);
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const kernels::Kernel& row : kernels::registry()) names.emplace_back(row.name);
  return names;
}

}  // namespace sparseloom
