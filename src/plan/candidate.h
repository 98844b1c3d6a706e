// KernelInfo: one candidate kernel as a row of data, and what it is judged by. The folder plan chooses from
// rows that it is given and includes no kernel.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "plan/block_row_order.h"
#include "runtime/cpu.h"
#include "runtime/cuda.h"
#include "sparseloom/extension.h"
#include "sparseloom/plan.h"

namespace sparseloom::plan {

/// Rates of one core, per second, measured once per process: flops in registers, bytes over memory.
struct MachineRates {
  double f32_avx2 = 0;     // fp32 FMA flops, 256-bit
  double f32_avx512 = 0;   // fp32 FMA flops, 512-bit
  double bf16_avx512 = 0;  // VDPBF16PS flops
  double bf16_amx = 0;     // TDPBF16PS flops, whole tiles
  double i8_avx512 = 0;    // VPDPBUSD operations, two for each product
  double i8_amx = 0;       // TDPBSSD operations, whole tiles
  double copy_bytes = 0;   // bytes read + written by a streaming copy larger than L2
  // Flops of the dense product that the executor lends, for this problem, all threads together; 0: none is
  // lent, or it was not measured.
  double gemm_flops = 0;
};

/// Rates of a whole GPU, per second, measured once per device (kernels/bsr_linear/cuda/rates.h); 0: not
/// measured.
struct GpuRates {
  double memory_bytes = 0;  // bytes read, of data larger than L2
  double l2_bytes = 0;      // bytes read, of data that fits L2
  double tensor_flops = 0;  // flops of bf16 mma.sync with operands in registers
};

/// What the machine allows: the ISA in force (SPARSELOOM_ISA caps it), its rates, and the problem's CUDA
/// device if it has one.
struct Machine {
  runtime::Isa isa = runtime::Isa::generic;
  MachineRates rates;
  runtime::CudaDevice cuda = {};  // of problem.device; sm = 0 for a problem on the CPU
  GpuRates gpu = {};              // of problem.device
};

/// Where a kernel's operands may lie. select() refuses a row for problems on the other side, so the rows need
/// not check that.
enum class Side : unsigned char { cpu, cuda, any };

/// Operands that have to be aligned: none, those that are read (Problem::aligned), or those and the matrix
/// that is written (Problem::out_aligned).
enum class Aligned : unsigned char { none, inputs, all };

/// One row of the kernel registry. `refusal` says why the kernel does not support a problem; empty means that
/// it does. `predict_us` and `workspace_bytes` are called only then. The number of threads is
/// problem.threads. Predictions are for one call with warm code and with inputs outside L2.
struct KernelInfo {
  const char* name;
  Side side;
  runtime::Isa isa;  // generic for CUDA kernels
  std::string (*refusal)(const Problem& problem, const Machine& machine);
  double (*predict_us)(const Problem& problem, const Machine& machine);
  std::size_t (*workspace_bytes)(const Problem& problem, const Machine& machine);
  /// The kernel takes 8-bit operands with scales. select() refuses all other rows for those, so these need
  /// not check. A row that takes them names in `refusal` the dtypes that it does not multiply.
  bool scaled = false;
  /// The kernel runs 8-bit operands only if the caller names it, because it is far too slow to be chosen
  /// unasked.
  bool scaled_by_name = false;
  /// How the kernel groups block rows (forward) or block columns (dx), whose order it takes from
  /// MatmulArgs::block_row_order. Null: the kernel takes them in the order of the index.
  BlockRowGroups (*block_row_groups)(const Problem& problem, const Machine& machine) = nullptr;
  /// What describe() says about the kernel's products if their NaN rule differs from that of the sparse
  /// kernels; or null.
  const char* caveat = nullptr;
  /// Which of the problem's operands the kernel needs aligned, for TMA or loads of 16 bytes. select() then
  /// refuses a problem that is not, and a call refuses operands that are less aligned than planned. Null: it
  /// takes any.
  Aligned (*needs_aligned)(const Problem& problem) = nullptr;
  /// A kernel from outside, whose functions stand in for the ones above (which are null); or null.
  const SparseloomKernel* outside = nullptr;
};

}  // namespace sparseloom::plan
