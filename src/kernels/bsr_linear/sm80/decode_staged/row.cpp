// The row of sm80_decode_staged.
#include <algorithm>
#include <string>

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

std::string refusal(const Problem& p, const Machine& machine) {
  if (std::string why = refuse_decode(p, machine); !why.empty()) return why;
  if (p.direction != Direction::forward) return "does forward only";
  if (std::string why = refuse_other_than_16_bits(p); !why.empty()) return why;
  if (std::max(p.block.rows, p.block.cols) > kStagedBlock)
    return "takes blocks of at most " + std::to_string(kStagedBlock) + " on each side, the block is " +
           to_string(p.block);
  if (p.cols > kStagedColumns)
    return "takes at most " + std::to_string(kStagedColumns) + " columns, there are " +
           std::to_string(p.cols);
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

}  // namespace

Kernel sm80_decode_staged_row() {
  Kernel row = cuda_row("sm80_decode_staged", refusal, predict_us,
                        [](const MatmulArgs& args, const Executor&) { return sm80_decode_staged(args); });
  row.info.needs_aligned = inputs_aligned;
  return row;
}

}  // namespace sparseloom::kernels::cuda

#endif
