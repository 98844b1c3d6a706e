// One product as the kernel tests see it: a random pattern, inputs rounded to the dtype, the fp64 answer, and
// a plain same-dtype one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/backwards.h"
#include "kernels/bsr_linear/verb.h"
#include "kernels/matrix.h"

namespace sparseloom::testing {

struct Case {
  Direction direction = Direction::forward;
  DType dtype = DType::f32;
  std::int64_t m = 0, rows = 0, cols = 0;
  BlockShape block;
  double density = 0.3;
  bool bias = false;
  bool residual = false;
  Activation activation = Activation::none;
  std::int64_t stride_padding =
      0;  // added to every leading stride; also shifts each matrix by that many elements
  std::int64_t values_shift = 0;  // elements from an aligned address to the base of values, or of dW's output
  bool integers = false;          // small integers: every sum is exact
  bool skewed = false;            // block row r keeps density^(1 + r): a few full rows, many empty
  bool accumulate = false;        // dw: added to Instance::before
  bool tf32 = false;              // f32: kernels may round operands to TF32; the plain product does
  std::uint64_t seed = 1;
};

std::string describe(const Case& c);

/// Every activation, and those that are functions: all but `none`.
std::span<const Activation> activations();
std::span<const Activation> functions();

double activate(Activation activation, double x);
/// By how much an error of x grows through the activation, at least 1; only relu2 is steeper than 1.2.
double slope(Activation activation, double x);

/// x with 10 explicit mantissa bits, to nearest, ties away from zero: what cvt.rna.tf32.f32 does. Inf and NaN
/// stay.
float to_tf32(float x);

struct Instance {
  Case c;
  std::vector<std::int32_t> crow, col, ccol, row, slot;
  Matrix x, dy, values, bias, residual;
  Matrix before;  // accumulate: the output, fp32, before the call; padding zero

  explicit Instance(const Case& c);
  IndexView index() const;
  TransposedView transposed() const;
  Problem problem(int threads) const;
  /// The same on a CUDA device.
  Problem cuda_problem(int device) const;
  /// The call on this instance's own memory, less output and workspace.
  MatmulArgs args();

  /// [m, rows], [m, cols] or [blocks * bm, bn]: the answer of this case's direction.
  std::int64_t out_rows() const;
  std::int64_t out_cols() const;
  /// The output before the call: all poison, or `before`.
  Matrix poisoned_output() const;

  struct Answer {
    std::vector<double> exact;  // fp64
    std::vector<double> plain;  // fp32 sums in order, rounded to the output's dtype
    std::vector<double>
        magnitude;  // sum of |a b|, and |bias|, |residual| or |before|: what rounding errors scale with
  };
  Answer answer();

  /// Runs the kernel on poisoned output and workspace of exactly the declared size; fails the test when
  /// either was overrun.
  Matrix run(const kernels::Kernel& kernel, const Executor& executor);
};

/// The kernels that this machine and problem allow, of the fast ones; and AMX's on emulated tiles
/// (amx_emulated.h).
std::vector<const kernels::Kernel*> runnable(const Problem& problem);

/// Per tile of 16 rows x a block of columns: the error against fp64 is at most twice the plain product's,
/// plus norm times eps.
void expect_accurate(Instance& instance, const Matrix& out, const Instance::Answer& answer);

/// Every element as the fp64 answer rounded once: for small integers.
void expect_exact(const Instance& instance, const Matrix& out, const Instance::Answer& answer);

}  // namespace sparseloom::testing
