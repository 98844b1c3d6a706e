// The verb "bsr_conv": convolutions whose channels are block-sparse, and whose taps are dense, in BSR. As for
// linear layers, forward, dX and dW are one verb with a direction.
//
//   x       [images, depth, height, width, cols]   channels last; y likewise, with rows channels
//   values  [blocks][taps][bm, bn]                 W [rows, cols] of the block's channels for each tap
//
//   y[p, o] = act(sum over taps t and stored blocks of W[t][o, i] x[under(p, t), i] + bias[o])
//             + residual[p, o]
//
// Along each axis x pixel p stride - padding + tap dilation lies under pixel p of y and the tap; outside of x
// it is zero. So a stored block under a tap is a block of a BSR matrix [rows, taps cols], whose block columns
// of one channel block follow each other. A transposed convolution is dX of the convolution that it
// transposes.
#pragma once

#include <string>

#include "sparseloom/conv_shape.h"
#include "sparseloom/export.h"
#include "sparseloom/matmul_args.h"
#include "sparseloom/plan.h"
#include "sparseloom/schedule.h"
#include "sparseloom/verb.h"

namespace sparseloom {

namespace bsr_conv {

/// Everything that the choice of a kernel depends on. In the base, m counts the pixels of the result (dW: of
/// dY); rows and cols are channels. Forward and dX, which may be the forward of a transposed convolution,
/// have bias, activation and residual.
struct Problem : sparseloom::Problem {
  ConvShape shape;
  friend bool operator==(const Problem&, const Problem&) = default;
};

/// args.product: as in MatmulArgs, with pixels as tokens and values of every tap. dX may have a bias [cols],
/// an activation and a residual, too.
struct Args {
  MatmulArgs product;
  ConvShape shape;
};

/// Microseconds of a convolution with a dense W, and of scattering W for it (dW: of gathering its blocks).
struct DenseTime {
  double product_us = 0, weight_us = 0;
};

struct Conv {
  static constexpr const char* kName = "bsr_conv";
  using Problem = bsr_conv::Problem;
  using Args = bsr_conv::Args;
  using Schedule = sparseloom::Schedule;
  /// The operations of a row's own epilogue besides a bias and forward's activation. The call does the others
  /// in a pass over the row's result.
  struct Traits {
    bool activates_dx = true, adds_residual = true;
  };
  SPARSELOOM_API static ProblemKey key(const Problem& problem);
  SPARSELOOM_API static std::string print(const Problem& problem);
  static std::string print(const Schedule& schedule) { return to_string(schedule); }
};

}  // namespace bsr_conv

using ConvPlan = PlanOf<bsr_conv::Conv>;

}  // namespace sparseloom
