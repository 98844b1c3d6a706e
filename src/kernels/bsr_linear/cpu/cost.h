// Predicts the time of a call from the problem and the machine's measured rates. The plan ranks candidates by
// it.
#pragma once

#include "plan/machine.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cpu {

/// What the steps of a panel kernel cost beyond its multiplications at full rate. The unit is a cycle, in
/// which a core does 32 fp32 flops by AVX2 FMA. The values were fitted by least squares to 330 random cells
/// of bench/cpp (--cells=model, one thread of an AMD Zen 4, 2026-11-21).
struct PanelCosts {
  int lanes, depth_step;
  double vectors[4];        // [v]: time of a register tile of v vectors over its time at the peak rate
  double block;             // per (strip, stored block, panel): its addresses and prefetches
  double out;               // per token and output: transpose, bias, rounding, store
  double pack;              // per token and depth
  double widen;             // per stored 16-bit element and panel, FMA only
  double transpose;         // per stored element, only for dx by bf16 dot products
  double outer_vectors[4];  // dw: as `vectors`
  double outer_element;     // dw: per stored element and chunk of tokens, for writing it
  double outer_pack;        // dw: per token and feature of both operands
};

/// The same for a decode kernel: all of its time, in the same cycles.
struct DecodeCosts {
  int lanes;
  double element, token_element;  // per stored element; per stored element and token (1, 2, 4 or 8 of them)
  double widen;                   // per stored element, added for 16-bit values
  double out, token_out;          // per output; per output and token
  double row;                     // dx: per row of a stored block and token, for widening dY
};

/// `peak`: flops per second that one core reaches with the kernel's own multiply instruction.
double predict_panel_us(const Problem& problem, const plan::MachineRates& rates, double peak,
                        const PanelCosts& costs);
double predict_decode_us(const Problem& problem, const plan::MachineRates& rates, const DecodeCosts& costs);

}  // namespace sparseloom::kernels::cpu
