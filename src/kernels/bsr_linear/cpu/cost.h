// Predicts the time of a call from the problem and the machine's measured rates. The plan ranks candidates by
// it.
#pragma once

#include "plan/machine.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cpu {

// The costs of a kernel beyond its multiplications at full rate. The unit is a cycle, in which a core does 32
// fp32 flops by AVX2 FMA. The values were fitted to the times of four sweeps' problems, each with all
// candidates, on two cores of an AMD Zen 4 (2026-11-25; those of AVX-512 VNNI on 2026-11-21), and again, held
// near those values, to 267 products of a sweep with awake threads and warm caches (2026-11-28).

/// Costs of forward or dx of a panel kernel.
struct StripCosts {
  double vectors[4];  // [v]: time of a register tile of v vectors over its time at the peak rate
  double block;       // per (strip, stored block, panel): its addresses and prefetches
  double strip;       // per (strip, panel): the start and end of a list of blocks
  double element;     // per stored element and panel: reading it
  double widened;     // per stored 16-bit element and panel, which FMA kernels widen
  double out;         // per token and output: transpose, bias, rounding, store
  double pack;        // per token and depth
  double transpose;   // per stored element, only for dx by bf16 dot products
};

/// Costs of dw of a panel kernel.
struct OuterCosts {
  // Few tokens: products over their time at the peak rate, in blocks of half a vector, one, and more.
  double few[3];
  double vectors[4];  // more tokens: like StripCosts::vectors
  double element;     // more tokens: per stored element and chunk of tokens, for writing it
  double pack;        // per token and feature of both operands
};

struct PanelCosts {
  int lanes, depth_step;
  StripCosts forward, dx;
  OuterCosts dw;
};

/// The whole time of a decode kernel, in the same cycles.
struct DecodeCosts {
  int lanes;
  double element, token_element;  // per stored element; per stored element and token (1, 2, 4 or 8 of them)
  double widen;                   // per stored element of 16 bits, in addition
  double out, token_out;          // per output; per output and token
  double row, token_row;          // dx: per row of a block's strip; and per row and token, to widen dY
};

/// Microseconds for waking and joining the threads of a panel or tile kernel's forward or dx, which
/// synchronise once more after packing.
inline constexpr double kPanelForkUs = 17;

/// `peak`: flops per second that one core reaches with the kernel's own multiply instruction.
double predict_panel_us(const Problem& problem, const plan::MachineRates& rates, double peak,
                        const PanelCosts& costs);
double predict_decode_us(const Problem& problem, const plan::MachineRates& rates, const DecodeCosts& costs);

}  // namespace sparseloom::kernels::cpu
