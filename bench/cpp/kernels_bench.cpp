// Times the CPU kernels alone: no plan, no torch, hot code, operands that a call of this size finds in the
// caches it leaves behind.
//   sparseloom_bench [--threads=N] [--cells=targets|model] [--count=N] [Google Benchmark's own flags]
// Counters: GF/s, share of the register peak of the kernel's own instruction times threads, and what the cost
// model predicts.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "cells.h"
#include "kernels/bsr_linear/rows.h"
#include "runtime/cpu.h"

namespace sparseloom::bench {
namespace {

struct Settings {
  int threads = 0;
  bool model = false;
  std::size_t count = 120;
};

double peak_of(const kernels::Kernel& kernel, const plan::MachineRates& rates) {
  using runtime::Isa;
  if (kernel.isa == Isa::amx) return rates.bf16_amx;
  if (kernel.isa == Isa::avx512_bf16) return rates.bf16_avx512;
  if (kernel.isa == Isa::avx512_vnni) return rates.i8_avx512;
  return kernel.isa == Isa::avx512 ? rates.f32_avx512 : rates.f32_avx2;
}

// Benchmarks of one cell run one after the other, so one set of operands is enough.
Operands& operands_of(const Cell& cell) {
  static std::string name;
  static std::unique_ptr<Operands> operands;
  if (name != cell.name()) operands = std::make_unique<Operands>(cell), name = cell.name();
  return *operands;
}

void run_cell(benchmark::State& state, const Cell& cell, const kernels::Kernel& kernel,
              const Executor& executor, const plan::Machine& machine) {
  Operands& operands = operands_of(cell);
  const auto planned = kernels::bsr_linear::ask(kernel, operands.problem(executor.num_threads), machine);
  const MatmulArgs args = operands.args(planned.workspace_bytes);
  const auto start = std::chrono::steady_clock::now();
  for (auto _ : state) kernel.launch(args, planned.schedule, executor);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double rate = operands.flops() * static_cast<double>(state.iterations()) / seconds;
  state.counters["GF/s"] = rate / 1e9;
  state.counters["peak%"] = 100 * rate / peak_of(kernel, machine.rates) / executor.num_threads;
  state.counters["predicted_us"] = planned.predicted_us;
}

// The peaks as benchmarks of their own, so that every report carries the denominator of its shares.
void report_rates(const plan::MachineRates& rates) {
  const std::pair<const char*, double> all[] = {
      {"rate/f32_avx2", rates.f32_avx2},       {"rate/f32_avx512", rates.f32_avx512},
      {"rate/bf16_avx512", rates.bf16_avx512}, {"rate/bf16_amx", rates.bf16_amx},
      {"rate/i8_avx512", rates.i8_avx512},     {"rate/i8_amx", rates.i8_amx},
      {"rate/copy_bytes", rates.copy_bytes}};
  for (const auto& [name, rate] : all) {
    benchmark::RegisterBenchmark(name, [rate = rate](benchmark::State& state) {
      for (auto _ : state) benchmark::ClobberMemory();
      state.counters["G/s per core"] = rate / 1e9;
    })->Iterations(1);
  }
}

void register_all(const Settings& settings) {
  static const Executor executor = Executor::pool(settings.threads);
  static const plan::Machine machine{runtime::active_isa(), kernels::measure_rates(runtime::active_isa())};
  report_rates(machine.rates);
  for (const Cell& cell : settings.model ? model_cells(settings.count) : target_cells()) {
    Problem problem;
    problem.direction = cell.direction, problem.dtype = cell.dtype, problem.m = cell.m,
    problem.rows = cell.rows, problem.cols = cell.cols, problem.block = cell.block;
    for (const kernels::Kernel& kernel : kernels::cpu_kernels()) {
      if (!kernels::bsr_linear::ask(kernel, problem, machine).refusal.empty()) continue;
      const std::string name = cell.name() + "/" + kernel.name;
      benchmark::RegisterBenchmark(
          name.c_str(),
          [cell, &kernel](benchmark::State& state) { run_cell(state, cell, kernel, executor, machine); })
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

Settings parse(int& argc, char** argv) {
  Settings settings;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg.starts_with("--threads="))
      settings.threads = std::atoi(argv[i] + 10);
    else if (arg.starts_with("--count="))
      settings.count = static_cast<std::size_t>(std::atoll(argv[i] + 8));
    else if (arg == "--cells=model")
      settings.model = true;
    else if (arg == "--cells=targets")
      settings.model = false;
    else
      argv[kept++] = argv[i];
  }
  argc = kept;
  return settings;
}

}  // namespace
}  // namespace sparseloom::bench

int main(int argc, char** argv) {
  const sparseloom::bench::Settings settings = sparseloom::bench::parse(argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  sparseloom::bench::register_all(settings);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
