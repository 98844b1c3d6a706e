// The fast CPU kernels: their rows, and the rates of this machine that their cost models ask for.
#pragma once

#include <span>

#include "kernels/args.h"
#include "plan/candidate.h"

namespace sparseloom::kernels {

/// Fastest instruction set first. A row's refusal() says whether this machine and problem suit it.
std::span<const Kernel> cpu_kernels();

/// One core's register peaks and copy bandwidth, of the instruction sets that `isa` includes; the others stay 0. Takes a few
/// milliseconds and allocates: called once per process, never inside a product. Best of several short windows, since a
/// neighbour on the same core can only make a window slower.
plan::MachineRates measure_rates(runtime::Isa isa = runtime::detected_isa());

}  // namespace sparseloom::kernels
