// The pointwise half of recurrent steps, on the executor's device.
#include "sparseloom/recurrent.h"

#include <algorithm>
#include <string>
#include <type_traits>

#include "core/check.h"
#include "kernels/recurrent/cpu/cells.h"
#include "kernels/recurrent/sm80/cells.h"
#include "ops/checks.h"
#include "runtime/cpu.h"
#include "runtime/cuda.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom {
namespace {

constexpr std::int64_t kUnits = 512;  // units per task: a few us of work, and whole vectors

// The cells of an instruction set for the dtype.
const kernels::cpu::CellOps& cpu_ops([[maybe_unused]] DType dtype) {
#if defined(__x86_64__)
  if (dtype != DType::f64 && runtime::active_isa().has(runtime::Isa::avx2)) return kernels::cpu::kCellsAvx2;
#endif
  return kernels::cpu::kCellsScalar;
}

template <class Cell>
void check(const char* op, const Cell& cell, const Executor& executor) {
  if (cell.n < 0 || cell.hidden < 0)
    core::fail(op, "sizes of 0 or more", core::shape(cell.n, cell.hidden), "pass sequences x units");
  const bool known = cell.dtype == DType::f32 || cell.dtype == DType::f16 || cell.dtype == DType::bf16;
  if (!known && (cell.dtype != DType::f64 || executor.device >= 0))
    core::fail(op, executor.device < 0 ? "f64, f32, f16 or bf16" : "f32, f16 or bf16", name_of(cell.dtype),
               "convert the module and its inputs with .float()");
  if constexpr (requires { cell.side; })
    if (cell.side < 0 || (cell.side > 0 && (cell.side % 16 != 0 || cell.hidden % cell.side != 0)))
      core::fail(op, "side 0, or a multiple of 16 that divides " + std::to_string(cell.hidden),
                 std::to_string(cell.side), "pass 0 if the gates are consecutive");
}

void require_operands(const char* op, const LstmCell& c) {
  core::require_memory(op, {{"z", c.z}, {"c_before", c.c_before}, {"c", c.c}, {"h", c.h}});
}
void require_operands(const char* op, const LstmCellGradient& c) {
  core::require_memory(
      op, {{"gates", c.gates}, {"c_before", c.c_before}, {"c", c.c}, {"dc", c.dc}, {"dz", c.dz}});
}
void require_operands(const char* op, const GruCell& c) {
  core::require_memory(op, {{"x", c.x}, {"g", c.g}, {"h_before", c.h_before}, {"h", c.h}});
}
void require_operands(const char* op, const GruCellGradient& c) {
  core::require_memory(
      op,
      {{"gates", c.gates}, {"h_before", c.h_before}, {"dx", c.dx}, {"dg", c.dg}, {"dh_before", c.dh_before}});
}

// Runs the cell on all units, on the device or the CPU; there on this thread alone if others would come later
// than they save.
template <class Cell>
void run(const char* op, const Cell& cell,
         [[maybe_unused]] int (*on_device)(const std::type_identity_t<Cell>&, void*) noexcept,
         void (*units)(const Cell&, std::int64_t, std::int64_t, std::int64_t), const Executor& executor) {
  check(op, cell, executor);
  if (executor.device >= 0) ops::require_gpu(op, executor);
  if (cell.n == 0 || cell.hidden == 0) return;
  require_operands(op, cell);
  if (executor.device >= 0) {
#ifdef SPARSELOOM_HAVE_CUDA
    const runtime::CudaDeviceScope scope(executor.device);
    ops::require_queued(op, on_device(cell, executor.stream), executor);
#endif
    return;
  }
  // Microseconds per unit on one thread, with AVX2 on Zen 3 by a thread's own clock, 16 x 2048 units: 5.1 ns
  // of an LSTM's forward in f32 (7.7 ns in bf16 that keeps the gates), 3.2 ns backward.
  constexpr double kUnitUs = 5e-3;
  const std::int64_t parts = core::ceil_div(cell.hidden, kUnits), tasks = cell.n * parts;
  const double us = static_cast<double>(cell.n * cell.hidden) * kUnitUs;
  runtime::parallel_tasks(runtime::if_worth_it(executor, us), tasks, [&](std::int64_t task) {
    const std::int64_t begin = task % parts * kUnits;
    units(cell, task / parts, begin, std::min(begin + kUnits, cell.hidden));
  });
}

#ifdef SPARSELOOM_HAVE_CUDA
#define SPARSELOOM_ON_DEVICE(name) kernels::cuda::name
#else
#define SPARSELOOM_ON_DEVICE(name) nullptr
#endif

}  // namespace

void lstm_cell(const LstmCell& cell, const Executor& executor) {
  run("lstm_cell", cell, SPARSELOOM_ON_DEVICE(sm80_lstm_cell), cpu_ops(cell.dtype).lstm, executor);
}

void lstm_cell_gradient(const LstmCellGradient& cell, const Executor& executor) {
  run("lstm_cell_gradient", cell, SPARSELOOM_ON_DEVICE(sm80_lstm_cell_gradient),
      cpu_ops(cell.dtype).lstm_gradient, executor);
}

void gru_cell(const GruCell& cell, const Executor& executor) {
  run("gru_cell", cell, SPARSELOOM_ON_DEVICE(sm80_gru_cell), cpu_ops(cell.dtype).gru, executor);
}

void gru_cell_gradient(const GruCellGradient& cell, const Executor& executor) {
  run("gru_cell_gradient", cell, SPARSELOOM_ON_DEVICE(sm80_gru_cell_gradient),
      cpu_ops(cell.dtype).gru_gradient, executor);
}

}  // namespace sparseloom
