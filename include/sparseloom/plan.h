// Problem and ScaledProblem describe a product; bsr_linear.h has the plans, which name the kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sparseloom/activation.h"
#include "sparseloom/direction.h"
#include "sparseloom/dtype.h"
#include "sparseloom/export.h"
#include "sparseloom/kept.h"
#include "sparseloom/pattern.h"
#include "sparseloom/schedule.h"

namespace sparseloom {

struct IndexView;

SPARSELOOM_API const char* name_of(Activation activation) noexcept;

/// The length class of the longest block row (or column) of a pattern. `even`: no block more than the mean.
/// `chance`: no longer than for blocks that lie at random. The further classes end at these multiples of the
/// mean: 2, 3, 5, 9.
enum class Longest : std::uint8_t { even, chance, twice, thrice, five, nine, more };

/// The facts of a pattern that the choice of a kernel may depend on, besides its shape and its number of
/// blocks: only those that some kernel's row reads, because layers of one shape share a plan, and a graph
/// that was compiled for one of them serves the others, if these agree. (Classes of the plain ratio, without
/// `chance`, were tried: 24 balanced patterns of one shape then had several classes, by their block columns.)
struct Facts {
  bool known = false;        // false: the pattern was not read, and the members below are meaningless
  bool uneven_rows = false;  // some block row has more than 1.5 times the mean number of blocks
  Longest longest_row = Longest::chance;
  Longest longest_column = Longest::chance;
  bool banded = false;  // most blocks have the next one of their row beside them, more than chance puts there
  // Only some of Problem::blocks are stored, as many as the index on its device has at the time of the call
  // (update_topology in topology.h, gate_blocks in gates.h). The other facts, if known, are those of all
  // blocks, of which the stored ones are a part: a hint for the choice, on which no kernel may rely.
  bool moving = false;

  /// The facts as a number that a program can carry: kUnknownDigest, kMovingDigest, one from 2 to 197, or,
  /// for some of the blocks of a known pattern, from -198 to -3. of_digest reads any other number as unknown
  /// facts.
  SPARSELOOM_API std::int64_t digest() const noexcept;
  SPARSELOOM_API static Facts of_digest(std::int64_t digest) noexcept;
  friend bool operator==(const Facts&, const Facts&) = default;
};
inline constexpr std::int64_t kUnknownDigest = -1, kMovingDigest = -2;

/// The facts of a valid index in host memory, in O(blocks).
SPARSELOOM_API Facts facts_of(const IndexView& index);

/// The members of the problems of both verbs (bsr_linear.h). The positions of the blocks enter as Facts only.
struct CommonProblem {
  DType dtype = DType::f32;
  std::int64_t m = 0;     // tokens
  std::int64_t rows = 0;  // out features
  std::int64_t cols = 0;  // in features
  BlockShape block;
  std::int64_t blocks = 0;  // stored blocks
  Facts facts;              // facts_of the index; the CPU kernels need none
  // The base of every operand that is read, and the distance between its rows, are multiples of 16 bytes,
  // which Hopper's copy engine (TMA) needs (is_aligned in matrix_view.h); and the same of the matrix that is
  // written, except that dvalues count as read, and the sums of dw with `accumulate` may lie anywhere. A call
  // with other operands is refused if the planned kernel needs it.
  bool aligned = true, out_aligned = true;
  bool bias = false;
  Activation activation = Activation::none;  // forward only
  int threads = 1;
  bool can_gemm = false;  // the executor lends a dense product for this dtype; make_plan sets it
  int device = -1;        // CUDA ordinal, or -1 for the CPU; make_plan takes it from the executor
  // Forbids the candidates `dense` and `reference`: the plan lists them as refused.
  bool strict = false;
  friend bool operator==(const CommonProblem&, const CommonProblem&) = default;
};

/// Everything that the choice of a kernel for a product of f32, f16, bf16 or f64 depends on.
struct Problem : CommonProblem {
  Direction direction = Direction::forward;
  // Forward only: a matrix of the shape and dtype of y is added after the activation.
  bool residual = false;
  // dw of f32, f16 and bf16 only: dW is added to dvalues, which are then fp32, instead of written.
  bool accumulate = false;
  // f32 on CUDA only: operands may be rounded to TF32 (10 explicit mantissa bits); sums stay fp32.
  bool tf32 = false;
  // Forward of f16 and bf16 on CUDA only: a gated linear unit (linear_glu in ops.h), whose second weight has
  // the same shape and block sides, and factor_blocks stored blocks. `bias`: of both.
  bool glu = false;
  std::int64_t factor_blocks = 0;
  friend bool operator==(const Problem&, const Problem&) = default;
};

/// The same for a product of 8-bit operands with scales (dtype i8 or f8e4m3), which is a forward product.
struct ScaledProblem : CommonProblem {
  // The dtype of the result and of the bias: bf16 or f32.
  DType out = DType::f32;
  // f8e4m3 on CUDA only: sums may stay in the tensor cores, which keep some 14 bits (torch's use_fast_accum).
  bool fast_accum = false;
  friend bool operator==(const ScaledProblem&, const ScaledProblem&) = default;
};

/// Such as "forward f32 m=4 W=[16, 32] block=8x16 blocks=3 density=0.75 threads=1".
SPARSELOOM_API std::string to_string(const Problem& problem);
SPARSELOOM_API std::string to_string(const ScaledProblem& problem);

/// One candidate kernel, with the plan's judgement.
struct Candidate {
  KeptText kernel;
  KeptText refusal;         // why it cannot run the problem; empty: it can
  double predicted_us = 0;  // meaningful only if it can run
};

}  // namespace sparseloom
