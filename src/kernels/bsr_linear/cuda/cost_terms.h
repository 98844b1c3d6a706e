// What the parts of the cost model share: the device with its measured rates, and the bytes that a product
// moves.
#pragma once

#include "plan/candidate.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cuda {

// The launch, the first byte and the last. It is the same for every kernel, so it only keeps tiny problems
// from looking free.
constexpr double kLaunchUs = 3;

// Flops per clock and multiprocessor that FFMA kernels reach, of the 256 that the hardware has.
constexpr double kFfmaFlops = 175;

/// The device. If its rates were measured, they replace what its clocks and widths would allow.
struct Device : runtime::CudaDevice {
  explicit Device(const plan::Machine& machine);

  double clocks() const { return multiprocessors * clock_hz; }  // of all multiprocessors, per second

  double l2_share = 1;  // measured over expected L2 rate of K tiles that are read in step
};

/// Bytes of the stored blocks, of X and Y, and of W as a dense matrix.
struct Bytes {
  double stored, tokens, dense;
};

Bytes bytes_of(const Problem& problem);
/// Bytes of an element of y.
double written_size(const Problem& problem);
double memory_seconds(double bytes, const Device& device);
double useful_flops(const Problem& problem, double tokens);

inline double us(double seconds) { return 1e6 * seconds; }

}  // namespace sparseloom::kernels::cuda
