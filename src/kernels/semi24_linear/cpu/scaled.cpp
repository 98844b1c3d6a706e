// The CPU rows of 8-bit 2:4 weights, without a fast one: the fast 8-bit products of the CPU are those of
// blocks and bitmaps.
#include "kernels/generic/scaled_rows.h"
#include "kernels/semi24_linear/rows.h"

namespace sparseloom::kernels {

std::span<const Semi24ScaledRow> semi24_scaled_cpu_rows() {
  static const Semi24ScaledRow rows[] = {generic::scaled::expand_row<Semi24>(),
                                         generic::scaled::reference_row<Semi24>()};
  return rows;
}

}  // namespace sparseloom::kernels
