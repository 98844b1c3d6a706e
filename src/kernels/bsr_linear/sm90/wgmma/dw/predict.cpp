// Predicted time of dW by wgmma, by block rows and by regions.
#include <algorithm>
#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/dw/row_parts.h"
#include "kernels/bsr_linear/sm90/wgmma/dw_regions/entry.h"

namespace sparseloom::kernels::cuda::wgmma::dw {

double predict_us(const Problem& p, const Device& device, const StepShape& step, bool narrow) {
  if (p.blocks == 0) return kLaunchUs;
  const std::int64_t block_rows = (p.rows + p.block.rows - 1) / p.block.rows,
                     block_columns = (p.cols + p.block.cols - 1) / p.block.cols;
  const Size size = size_of_product(step, p.block, block_rows, p.blocks, p.m, device.multiprocessors);
  const Way way = choose_way(size, block_rows, block_columns, narrow);
  const Bytes bytes = bytes_of(p);
  const double read =
      bytes.tokens * step.column_bytes / (step.tokens * static_cast<double>(size_of(p.dtype)));
  // The first work items of all thread blocks read the same tokens for the first time, in bursts.
  const double memory = memory_seconds(1.1 * std::max(1.0, way.rounds()) * read + bytes.stored, device);
  // A pass rewrites operands of fp32 first, at five sixths of the DRAM rate.
  const double preparing_us =
      p.dtype == DType::f32 ? kLaunchUs + us(1.2 * memory_seconds(bytes.tokens + read, device)) : 0;
  // Finding the work item, the first copies and the last stores; with regions also finding their blocks,
  // which in a band lie in few regions. Fitted to the sweeps of an H100 that docs/log names (2026-11-25).
  constexpr double kItemUs = 2, kRegionUs = -1, kRegionBlockUs = 1.6e-3;
  const double finding_us =
      way.by_regions ? kRegionUs + (p.facts.banded ? 2 : 1) * kRegionBlockUs * static_cast<double>(p.blocks)
                     : kItemUs;
  // Factor for copies whose rows each touch two lines of L2 (the same sweeps, and 1000 x 3000 x 5000).
  const double copies = p.dtype != DType::f32 && work_of(p).off_lines ? 1.6 : 1;
  return kLaunchUs + finding_us + preparing_us +
         copies * us(std::max(way.clocks() / device.clock_hz, memory));
}

}  // namespace sparseloom::kernels::cuda::wgmma::dw
