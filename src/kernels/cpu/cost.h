// What a call will take, from the problem and the machine's measured rates: the plan ranks candidates by it.
#pragma once

#include "plan/candidate.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cpu {

/// What a kernel's steps cost beside its multiplications at full rate. In cycles, of which a core does 32
/// fp32 flops by AVX2 FMA; fitted by least squares to 330 random cells of bench/cpp (--cells=model, one
/// thread of an AMD Zen 4, 2026-11-21): the median prediction is within 7 % of the measurement there.
struct PanelCosts {
  int lanes, depth_step;
  double vectors[4];  // [v]: time of a register tile of v vectors over its time at the peak rate
  double block;       // per (strip, stored block, panel): its addresses and prefetches
  double out;         // per token and output: transpose, bias, rounding, store
  double pack;        // per token and depth
  double widen;       // per stored 16-bit element and panel, FMA only
  double transpose;   // per stored element, bf16 dots' dx only
  double outer_vectors[4];
  double outer_element;  // dw: per stored element and chunk, written
  double outer_pack;     // dw: per token and feature of both operands
};

struct DecodeCosts {
  int lanes;
  double element, token_element;  // per stored element; and that times tokens (1, 2, 4 or 8)
  double widen;                   // more of `element` for 16-bit values
  double out, token_out;          // per output; and that times tokens
  double row;                     // dx: per row of a stored block and token, widened
};

extern const PanelCosts kAvx2PanelCosts, kAvx512PanelCosts, kAvx512VnniPanelCosts, kAvx512Bf16PanelCosts;
extern const DecodeCosts kAvx2ForwardCosts, kAvx512ForwardCosts, kAvx2DxCosts, kAvx512DxCosts;
/// Of a core that multiplies bf16 pairs at twice the FMA's rate; fitted to 72 cells through Python on the
/// same machine, 2026-11-22.
extern const DecodeCosts kAvx512Bf16ForwardCosts;

/// `peak`: flops per second of one core by the kernel's own instruction.
double predict_panel_us(const Problem& problem, const plan::MachineRates& rates, double peak,
                        const PanelCosts& costs);
double predict_decode_us(const Problem& problem, const plan::MachineRates& rates, const DecodeCosts& costs);

}  // namespace sparseloom::kernels::cpu
