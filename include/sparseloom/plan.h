// Describe -> decide: a Problem says what is asked, a Plan what will run and why.
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

/// W is [rows, cols] = [out features, in features]:
/// forward: Y [m, rows] = act(X [m, cols] W^T + bias) + residual; dx: dX [m, cols] = dY [m, rows] W; dw: dW =
/// dY^T X at the stored blocks.
enum class Direction : std::uint8_t { forward, dx, dw };

/// gelu_erf is x Phi(x); gelu_tanh its tanh form (Hendrycks & Gimpel 2016); silu is x sigmoid(x). Forward
/// only.
enum class Activation : std::uint8_t { none, relu, gelu_erf, gelu_tanh, silu };

SPARSELOOM_API const char* name_of(Direction direction) noexcept;
SPARSELOOM_API const char* name_of(Activation activation) noexcept;

/// All that a choice depends on beside the pattern itself.
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
  bool residual = false;  // forward only: something of y's shape and dtype is added behind the activation
  bool accumulate =
      false;  // dw of f32, f16 and bf16 only: added to dvalues, which are fp32 then, instead of written
  int threads = 1;
  bool can_gemm = false;  // the executor lends a dense product for the dtype
  int device = -1;        // CUDA ordinal, -1: the CPU; the executor's
  bool tf32 =
      false;  // f32 on CUDA only: operands may be rounded to TF32 (10 explicit mantissa bits); sums stay fp32
  bool fast_accum = false;  // f8e4m3 on CUDA only: sums may stay in the tensor cores, which keep some 14
                            // bits; torch's use_fast_accum
  bool strict = false;      // forbids the dense and reference candidates; they are refused by name
  DType out = DType::f32;   // what an 8-bit product writes: bf16 or f32; every other dtype writes itself,
                            // whatever stands here
  friend bool operator==(const Problem&, const Problem&) = default;
};

SPARSELOOM_API std::string to_string(const Problem& problem);

/// One candidate as the plan saw it.
struct Candidate {
  std::string kernel;
  std::string refusal;      // empty: it could run
  double predicted_us = 0;  // meaningful when it could run
};

/// The decision: immutable, shared, valid for every matrix with the pattern it was made for.
struct Plan {
  Problem problem;
  std::int64_t pattern_version = 0;
  int kernel = -1;  // row of the kernel registry
  std::string kernel_name;
  std::vector<Candidate> candidates;  // all, in registry order
  std::size_t workspace_bytes = 0;    // scratch the caller lends to each call; 64-byte aligned
  std::string
      caveat;  // what else the kernel multiplies than stored blocks, and so spreads NaN from; or empty
  std::string
      machine;  // one block row: instruction set in force, the rates that decided, where they come from
  std::vector<std::int64_t> cost_prefix;       // forward: per block row, dx: per block column; [n + 1], what
                                               // threads divide evenly; empty on CUDA
  std::vector<std::uint16_t> block_row_order;  // CUDA: block rows (forward) or columns (dx) as they are
                                               // multiplied, like ones together; empty: as they lie
  bool uneven_block_rows = false;  // CUDA: some block rows have more blocks than the kernel is made for: half
                                   // again the mean, or what it says

  /// A few block rows: the problem, the choice and its prediction, every refusal and why.
  SPARSELOOM_API std::string describe() const;
};

}  // namespace sparseloom
