// Machine: the CPU and the problem's GPU as rows see them. They predict times from its rates.
#pragma once

#include <array>

#include "runtime/cpu.h"
#include "runtime/cuda.h"

namespace sparseloom::plan {

/// Rates of one core, per second, measured once per process: flops in registers, bytes over memory.
struct MachineRates {
  double f32_avx2 = 0;     // fp32 FMA flops, 256-bit
  double f32_avx512 = 0;   // fp32 FMA flops, 512-bit
  double bf16_avx512 = 0;  // VDPBF16PS flops
  double bf16_amx = 0;     // TDPBF16PS flops, whole tiles
  double i8_avx512 = 0;    // VPDPBUSD operations, two per product
  double i8_amx = 0;       // TDPBSSD operations, whole tiles
  double copy_bytes = 0;   // bytes read + written by a streaming copy larger than L2
  // Flops of the dense product that the executor lends, for this problem, all threads together; 0: there is
  // none, or it was not measured.
  double gemm_flops = 0;
};

/// Rates of a whole GPU, per second, measured once per device (kernels/shared/cost/gpu_rates.h); 0: not
/// measured.
struct GpuRates {
  double memory_bytes = 0;  // bytes read, of data larger than L2
  double l2_bytes = 0;      // bytes read, of data that fits L2
  double tensor_flops = 0;  // flops of bf16 mma.sync with operands in registers
};

/// The machine: the ISA in force (SPARSELOOM_ISA caps it), its rates, and the problem's CUDA device if it has
/// one.
struct Machine {
  runtime::Isa isa = runtime::Isa::generic;
  MachineRates rates;
  runtime::CudaDevice cuda = {};  // problem.device; sm = 0 for a problem on the CPU
  GpuRates gpu = {};              // rates of problem.device
  /// Clusters of 1, 2, 4 and 8 thread blocks that run at once on problem.device if each thread block fills a
  /// multiprocessor; 0: such clusters do not run. The groups of multiprocessors differ from chip to chip.
  std::array<int, 4> clusters = {};
};

}  // namespace sparseloom::plan
