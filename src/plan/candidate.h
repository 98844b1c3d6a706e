// KernelInfo: one candidate as a row of data. plan chooses from rows handed in and never sees a kernel.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "plan/line_order.h"
#include "runtime/cpu.h"
#include "runtime/cuda.h"
#include "sparseloom/plan.h"

namespace sparseloom::plan {

/// Rates of one core, measured once per process, in registers (flops) and over memory (bytes); per second.
struct MachineRates {
  double f32_avx2 = 0;     // fp32 FMA flops, 256-bit
  double f32_avx512 = 0;   // fp32 FMA flops, 512-bit
  double bf16_avx512 = 0;  // VDPBF16PS flops
  double bf16_amx = 0;     // TDPBF16PS flops, whole tiles
  double i8_avx512 = 0;    // VPDPBUSD operations, two a product
  double i8_amx = 0;       // TDPBSSD operations, whole tiles
  double copy_bytes = 0;   // bytes read + written by a streaming copy larger than L2
  double gemm_flops = 0;   // the lent dense product's rate for this problem, all threads together; 0: none
                           // lent or not measured
};

/// Rates of a whole GPU, measured once per device (kernels/cuda/rates.h), per second; 0: not measured.
struct GpuRates {
  double memory_bytes = 0;  // read, of more than L2 holds
  double l2_bytes = 0;      // read, of what L2 holds
  double tensor_flops = 0;  // bf16 mma.sync, operands in registers
};

/// What the machine allows: the ISA in force (SPARSELOOM_ISA caps it), its rates, and the problem's CUDA
/// device when it has one.
struct Machine {
  runtime::Isa isa = runtime::Isa::generic;
  MachineRates rates;
  runtime::CudaDevice cuda = {};  // of problem.device; sm = 0 for a problem on the CPU
  GpuRates gpu = {};              // of problem.device
};

/// Where a kernel's operands may lie. select() refuses a row for problems on the other side, so that rows
/// need not.
enum class Side : unsigned char { cpu, cuda, any };

/// `refusal` is supports() with its reason: empty means yes. `predict_us` and `workspace_bytes` are asked
/// only then. threads come from problem.threads; costs are for one call with warm code and inputs outside L2.
struct KernelInfo {
  const char* name;
  Side side;
  runtime::Isa isa;  // generic for CUDA kernels
  std::string (*refusal)(const Problem& problem, const Machine& machine);
  double (*predict_us)(const Problem& problem, const Machine& machine);
  std::size_t (*workspace_bytes)(const Problem& problem, const Machine& machine);
  /// Takes 8-bit operands with scales. select() refuses the other rows for those, so that they need not; a
  /// row that takes them says in `refusal` which dtypes it does not multiply.
  bool scaled = false;
  /// 8-bit operands only when the caller names the row: so slow that nobody wants it unasked.
  bool scaled_by_name = false;
  /// How the kernel groups block rows (forward) or columns (dx), whose order it takes from Plan::line_order;
  /// null: as they lie.
  LineGroups (*line_groups)(const Problem& problem, const Machine& machine) = nullptr;
  /// What describe() says of its products where their NaN rule is not that of the sparse kernels.
  const char* caveat = nullptr;
  /// Beyond which Plan::uneven_lines tells the kernel to expect lines of unlike length.
  Evenness even = {};
};

}  // namespace sparseloom::plan
