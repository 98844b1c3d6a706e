// What the parts of the cost model share: the device as it was measured, and bytes by where they pass.
#pragma once

#include "plan/candidate.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda {

// First byte, last byte and the launch itself; the same for every kernel, so it only keeps tiny problems from
// looking free.
constexpr double kLaunchUs = 3;

// Flops per clock and multiprocessor that FFMA kernels reach, of the 256 there are.
constexpr double kFfmaFlops = 175;

/// The device with what its probes reached in the place of what its clocks and widths allow, where they were
/// measured.
struct Device : runtime::CudaDevice {
  explicit Device(const plan::Machine& machine);

  double clocks() const { return multiprocessors * clock_hz; }  // of all multiprocessors, in a second

  double l2_share = 1;  // of what slabs read in step are expected to get
};

struct Bytes {
  double stored, tokens, dense;
};

Bytes bytes_of(const Problem& problem);
/// Of an element of y.
double written_size(const Problem& problem);
double memory_seconds(double bytes, const Device& device);
double useful_flops(const Problem& problem, double tokens);

inline double us(double seconds) { return 1e6 * seconds; }

}  // namespace sparseloom::kernels::cuda
