// Problem describes what is asked; Plan says which kernel will run and why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sparseloom/dtype.h"
#include "sparseloom/export.h"
#include "sparseloom/pattern.h"

namespace sparseloom {

/// Which of a linear layer's three products. W is [rows, cols] = [out features, in features]:
/// forward: Y [m, rows] = act(X [m, cols] W^T + bias) + residual
/// dx: dX [m, cols] = dY [m, rows] W
/// dw: dW = dY^T X at the stored blocks
enum class Direction : std::uint8_t { forward, dx, dw };

/// relu is max(x, 0); gelu_erf is x Phi(x) and gelu_tanh its tanh form (Hendrycks & Gimpel 2016); silu is x
/// sigmoid(x); relu2 is max(x, 0)^2 (So et al. 2021). Forward only.
enum class Activation : std::uint8_t { none, relu, gelu_erf, gelu_tanh, silu, relu2 };

SPARSELOOM_API const char* name_of(Direction direction) noexcept;
SPARSELOOM_API const char* name_of(Activation activation) noexcept;

/// Everything that the choice of a kernel depends on, except the pattern itself.
struct Problem {
  Direction direction = Direction::forward;
  DType dtype = DType::f32;
  std::int64_t m = 0;     // tokens
  std::int64_t rows = 0;  // out features
  std::int64_t cols = 0;  // in features
  BlockShape block;
  std::int64_t blocks = 0;  // stored blocks
  bool bias = false;
  Activation activation = Activation::none;
  // Forward only: a matrix of the shape and dtype of y is added after the activation.
  bool residual = false;
  // dw of f32, f16 and bf16 only: dW is added to dvalues, which are then fp32, instead of written.
  bool accumulate = false;
  int threads = 1;
  bool can_gemm = false;  // the executor lends a dense product for this dtype; make_plan sets it
  int device = -1;        // CUDA ordinal, or -1 for the CPU; make_plan takes it from the executor
  // f32 on CUDA only: operands may be rounded to TF32 (10 explicit mantissa bits); sums stay fp32.
  bool tf32 = false;
  // f8e4m3 on CUDA only: sums may stay in the tensor cores, which keep some 14 bits (torch's use_fast_accum).
  bool fast_accum = false;
  // Forbids the candidates `dense` and `reference`: the plan lists them as refused.
  bool strict = false;
  // What an 8-bit product writes: bf16 or f32. Every other product writes its own dtype and ignores this.
  DType out = DType::f32;
  friend bool operator==(const Problem&, const Problem&) = default;
};

SPARSELOOM_API std::string to_string(const Problem& problem);

/// One candidate kernel, as the plan judged it.
struct Candidate {
  std::string kernel;
  std::string refusal;      // why it cannot run the problem; empty: it can
  double predicted_us = 0;  // meaningful only if it can run
};

/// The decision: immutable, shareable between threads, valid for every matrix with the pattern it was made
/// for.
struct Plan {
  Problem problem;
  std::int64_t pattern_version = 0;
  int kernel = -1;  // row of the kernel registry
  std::string kernel_name;
  std::vector<Candidate> candidates;  // all of them, in registry order
  // Scratch that the caller lends to each call; 64-byte aligned on the CPU, 256-byte aligned on CUDA.
  std::size_t workspace_bytes = 0;
  // What the kernel multiplies besides the stored blocks, so that NaN spreads from there; or empty.
  std::string caveat;
  // One line of text: the instruction set in force or the GPU, the rates that decided, and their origin.
  std::string machine;
  // CPU: running cost [n + 1] over block rows (forward) or block columns (dx), which the threads divide
  // evenly. Empty for dw and on CUDA.
  std::vector<std::int64_t> cost_prefix;
  // CUDA: the order in which block rows (forward) or block columns (dx) are multiplied; those that read the
  // same parts stand together. Empty: the order of the index.
  std::vector<std::uint16_t> block_row_order;
  // CUDA: some block rows (dx: block columns) have more blocks than the kernel is made for: 1.5 times the
  // mean, or the limit in its registry row.
  bool uneven_block_rows = false;

  /// A few lines of text: the problem, the choice and its prediction, and why each other candidate was not
  /// chosen.
  SPARSELOOM_API std::string describe() const;
};

}  // namespace sparseloom
