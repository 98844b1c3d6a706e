// One 8-bit product as the kernel tests see it: random operands of the whole range, scales of either kind,
// and the answer twice: bit for bit as matmul_args.h says, and in fp64.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/bsr_linear/verb.h"
#include "kernels/case.h"

namespace sparseloom::testing {

struct ScaledCase {
  DType dtype = DType::i8, out = DType::f32;
  std::int64_t m = 0, rows = 0, cols = 0;
  BlockShape block;
  double density = 0.3;
  bool x_each = true, w_each = true;  // one factor for each token, for each output
  bool bias = false;
  Activation activation = Activation::none;
  std::int64_t stride_padding = 0;  // as Case's
  std::int64_t values_shift = 0;
  bool skewed = false;
  bool fast_accum = false;  // f8e4m3
  std::uint64_t seed = 1;
};

std::string describe(const ScaledCase& c);

struct ScaledInstance {
  ScaledCase c;
  std::vector<std::int32_t> crow, col;
  Matrix x, values, bias;
  std::vector<float> x_scale, w_scale;

  explicit ScaledInstance(const ScaledCase& c);
  IndexView index() const;
  ScaledProblem problem(int threads) const;
  /// The call on this instance's own memory, less output and workspace.
  MatmulArgs args();

  /// Every element of x, of values (padding stays zero).
  void fill_x(double value);
  void fill_values(double value);

  /// Runs the kernel on poisoned output and workspace of exactly the declared size; fails the test when
  /// either was overrun.
  Matrix run(const kernels::ScaledKernel& kernel, const Executor& executor);

  /// i8: every element has the bits of args.h's formula on exact sums, unless an activation's own rounding
  /// comes between; always, and f8 too: per tile of 16 tokens x a block of outputs, no further from fp64's
  /// answer than the formula's roundings reach.
  void expect_right(const Matrix& out);
};

/// i8 and f8 kernels that this machine and problem allow: the CPU's rows, AMX's on emulated tiles, and the
/// reference.
std::vector<const kernels::ScaledKernel*> scaled_runnable(const ScaledProblem& problem);

}  // namespace sparseloom::testing
