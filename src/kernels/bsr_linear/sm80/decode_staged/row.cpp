// The row of sm80_decode_staged.
#include <algorithm>

#include "kernels/bsr_linear/cuda/cost_terms.h"
#include "kernels/bsr_linear/cuda/refusals.h"
#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm80/decode/row_parts.h"
#include "kernels/bsr_linear/sm80/decode_staged/entry.h"

#ifdef SPARSELOOM_HAVE_CUDA

namespace sparseloom::kernels::cuda {
namespace {

using plan::Machine;

// By the block's side along the outputs, 8 and 16. Fitted on an H200 to 16 x 4096 x 16384 and 32 x
// 12288 x 12288.
constexpr double kStagedUs[] = {13, 7.6};
constexpr double kStagedXUs[] = {30e-6, 17e-6};   // for each byte of X
constexpr double kStagedStream[] = {0.68, 0.89};  // of the memory's nominal rate

Refusal refusal(const Problem& p, const Machine& machine) {
  if (const Refusal why = refuse_decode(p, machine)) return why;
  if (p.direction != Direction::forward) return "does forward only";
  if (const Refusal why = refuse_other_than_16_bits(p)) return why;
  if (std::max(p.block.rows, p.block.cols) > kStagedBlock)
    return {"takes blocks of at most {} on each side, the block is {}x{}", kStagedBlock, p.block.rows,
            p.block.cols};
  if (p.cols > kStagedColumns) return {"takes at most {} columns, there are {}", kStagedColumns, p.cols};
  return {};
}

// The time that a thread block takes before its first block and after its last, its share of X, and the
// stored bytes as a stream.
double predict_us(const Problem& p, const Machine& machine) {
  const Device device(machine);
  const int side = p.block.rows < 16 ? 0 : 1;
  const double x = static_cast<double>(p.m * p.cols) * static_cast<double>(size_of(p.dtype));
  return kStagedUs[side] + kStagedXUs[side] * x +
         us(bytes_of(p).stored / (kStagedStream[side] * device.memory_bytes));
}

Refusal propose(const Problem& p, const Machine& machine, Proposals<Linear>& out) {
  if (const Refusal why = refusal(p, machine)) return why;
  out.add({{}, predict_us(p, machine), 0});
  return {};
}

}  // namespace

Kernel sm80_decode_staged_row() {
  Kernel row = cuda_row(
      "sm80_decode_staged", propose,
      [](const MatmulArgs& args, const Schedule&, const Executor&) { return sm80_decode_staged(args); });
  row.needs_aligned = inputs_aligned;
  return row;
}

}  // namespace sparseloom::kernels::cuda

#endif
