// Shared by the rows' predictions: the device with its measured rates, the bytes that a product moves, and
// constants that were fitted for several kernels.
#pragma once

#include "plan/machine.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels {

/// The forward product of the same shape, for refusals and predictions that ignore the members which only a
/// ScaledProblem has.
inline Problem forward_of(const ScaledProblem& problem) { return {problem}; }

namespace cpu {

/// The time of a call through torch beside the kernel's arithmetic.
inline constexpr double kCallUs = 4;

}  // namespace cpu
namespace cuda {

// The launch, the first byte and the last. It is the same for every kernel, so it only keeps tiny problems
// from looking free.
constexpr double kLaunchUs = 3;

// Flops per clock and multiprocessor that FFMA kernels reach, of the 256 that the hardware has.
constexpr double kFfmaFlops = 175;

// The fraction of the peak that cuBLAS reached on an H200 in every dtype: 796 of 1070 TF/s bf16, 400 of 535
// TF32, 49 of 67 fp32.
constexpr double kVendorShare = 0.74;

// L2 bandwidth for K tiles of 128-byte rows, with thread blocks in step: 10 TB/s on an H200.
constexpr double kWgmmaL2BytesPerClock = 38.5;

/// The device. Its measured rates, if any, replace those computed from its clocks and widths.
struct Device : runtime::CudaDevice {
  explicit Device(const plan::Machine& machine);

  double clocks() const { return multiprocessors * clock_hz; }  // of all multiprocessors, per second

  double l2_share = 1;  // ratio of measured to expected L2 rate of K tiles that are read in step
};

/// Bytes of the stored blocks, of X and Y, and of W as a dense matrix.
struct Bytes {
  double stored, tokens, dense;
};

/// `out_size`: bytes of an output; 0: the size of an operand's element.
Bytes bytes_of(const Problem& problem, double out_size = 0);
double memory_seconds(double bytes, const Device& device);
double useful_flops(const Problem& problem, double tokens);
/// Flops per second of the device's widest instructions for the dtype.
double dense_peak(const Problem& problem, const Device& device);

inline double us(double seconds) { return 1e6 * seconds; }

/// The work of forward and dX, in blocks: `out` outputs are sums over `depth`, and a block is `side` outputs
/// by `gathered` positions of the reduction. dW has forward's.
struct Work {
  double m, out, depth, side, gathered, size;
  double block_rows, block_columns;
  double mean, longest;         // positions of the reduction that a block row stores, and the longest one
  double density, row_density;  // of all block rows, and of the longest
  bool banded, ragged;          // ragged: rows of an operand are not aligned to 16 bytes
  bool off_lines;               // rows of the gathered tokens are not aligned to 128 bytes, an L2 line
};
Work work_of(const Problem& problem);
/// The work after merging the blocks into units of at least 32 on each side.
Work merged_work(const Work& work);
/// The fraction of the reduction that any of `rows` neighbouring block rows stores, given each one's density.
double touched(const Work& work, double density, double rows);

/// Microseconds of this multiprocessor for a time in ns of one of an H200 (1.98 GHz).
double chain_us(double nanoseconds, const Device& device);
/// Microseconds of flops or bytes at a rate, in 1e12 per second, of all 132 multiprocessors of an H200.
double rate_us(double work, double tera, const Device& device);
/// Microseconds of the stored blocks, X and Y as a stream.
double stream_us(const Problem& problem, const Device& device);

/// Useful flops per clock and multiprocessor on long reductions, by the block's side along the outputs: 8,
/// 16, 32, 64, 128.
using FlopsBySide = double[5];

/// Microseconds of the sm_80 tile kernels of forward and dX. widest: the most outputs of a tile in small
/// batches. out_size: as for bytes_of.
double tiled_us(const Problem& problem, const Device& device, const FlopsBySide& rates, double scale,
                int widest, double out_size = 0);

}  // namespace cuda
}  // namespace sparseloom::kernels
