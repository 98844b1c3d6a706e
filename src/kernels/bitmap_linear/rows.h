// The rows of this library for the verbs bitmap_linear and bitmap_scaled_linear, in order of preference at
// equal predictions. LinearOf adds `dense` and `reference` after the former.
#pragma once

#include <cstddef>
#include <span>

#include "plan/machine.h"
#include "sparseloom/bitmap_linear.h"
#include "sparseloom/scaled_of.h"

namespace sparseloom::kernels {

/// Empty on other machines than x86-64.
std::span<const Row<BitmapLinear>> bitmap_cpu_rows();

/// A kernel of forward and dX, for layouts that write their index as a bitmap in each call.
struct BitmapKernel {
  const char* name;
  Refusal (*refuse)(const LinearProblem& problem, const plan::Machine& machine);
  double (*predict_us)(const LinearProblem& problem, const plan::Machine& machine);
  std::size_t (*workspace)(const LinearProblem& problem);
  void (*run)(const MatmulArgs& args, const BitmapView& w, const Executor& executor);
};

/// avx512bf16_bitmap and avx512_bitmap. Empty on other machines than x86-64.
std::span<const BitmapKernel> bitmap_kernels();

/// dW on any machine.
extern const Row<BitmapLinear> kBitmapDenseDw;

/// All rows of the CPU, `expand` and `reference` among them.
std::span<const Row<BitmapScaled>> bitmap_scaled_cpu_rows();

}  // namespace sparseloom::kernels
