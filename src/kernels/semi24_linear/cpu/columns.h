// The columns kernel: dX. The stored elements of some rows are sorted by column; each one multiplies the
// gradients of its output, tokens on the lanes, into its column's sums, which stay in registers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/semi24_linear/cpu/gather.h"

namespace sparseloom::kernels::cpu {

/// Groups of a unit, an even number: its sorted elements take 70 kB.
inline constexpr std::int64_t kColumnsGroups = 16;

/// The arguments of a kernel.
struct ColumnsJob {
  const MatmulArgs& args;
  Semi24View w;
  GatherPanels panels;
  /// dY in fp32 as [panels][gather_depth(rows)][vectors * kGatherLanes tokens], zero past the last token.
  float* dy;
};

struct ColumnsOps {
  Runs* runs;  // the kernel's count of its runs
  /// Writes ColumnsJob::dy for the rows of W [begin, end); begin is a multiple of kGatherLanes.
  void (*pack_dy)(const ColumnsJob& job, std::int64_t begin, std::int64_t end);
  /// Computes the units [begin, end).
  void (*units)(const ColumnsJob& job, std::int64_t begin, std::int64_t end);
};

/// Bytes of dY as it is packed.
std::size_t columns_workspace(std::int64_t m, std::int64_t rows);
void run_columns(const ColumnsOps& ops, const MatmulArgs& args, const Semi24View& w,
                 const Executor& executor);

}  // namespace sparseloom::kernels::cpu
