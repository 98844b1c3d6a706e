// Cost model of the kernels for small batches.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/bsr_linear/cuda/cost.h"
#include "kernels/bsr_linear/cuda/cost_terms.h"
#include "kernels/bsr_linear/sm90/decode_x_streamed/entry.h"

namespace sparseloom::kernels::cuda {
namespace {

// sm80_decode_staged, by the block's side along the outputs, 8 and 16. Fitted on an H200 to 16 x 4096 x 16384
// and 32 x 12288 x 12288.
constexpr double kStagedUs[] = {13, 7.6};
constexpr double kStagedXUs[] = {30e-6, 17e-6};   // for each byte of X
constexpr double kStagedStream[] = {0.68, 0.89};  // of the memory's nominal rate

// sm90_decode: the time from the launch to the first bytes and from the last bytes to the end, and the time
// for each byte of X. Fitted on an H200 to 32 x 12288 x 12288, 16 x 4096 x 16384 and, with blocks of 16, 256
// x 4096 x 4096.
constexpr double kHopperDecodeUs = 4.6, kHopperDecodeXUs = 6.1e-6;
constexpr double kHopperDecodeStream = 0.88, kXInSharedStream = 0.86;  // of the memory's nominal rate
constexpr double kHopperDecodeBytesPerClock =
    32;  // from L2 to a multiprocessor: W, and the tokens for every 32 rows of a block
constexpr double kXInSharedBytesPerClock =
    17;  // of W, with blocks of 16: W and 32 tokens come from shared memory
constexpr double kHopperSumBytesPerClock =
    14;  // of sums from other thread blocks of a cluster, with blocks of 16

// sm90_decode_lines: the same, then the rate from L2 to a multiprocessor, and the rate at which memory serves
// one strip if there are few. With blocks of 16, the rate at which L2 answers requests of all multiprocessors
// together; a token is one request and a block's values are four.
constexpr double kBlockRowUs = 2.2, kBlockRowXUs = 2.6e-6, kBlockRowBytesPerClock = 38, kLineBytes = 60e9,
                 kBlockRowRequests = 150e9;

// The same with X streamed (decode_x_streamed/kernel.cuh), fitted to 32 x 12288 x 12288 and 24 x 4096 x
// 16384.
constexpr double kXStreamedUs = 3.9, kXStreamedStream = 0.88, kXStreamedBytesPerClock = 48;

}  // namespace

double predict_decode_us(const Problem& p, const plan::Machine& machine) {
  const Device device(machine);
  const Bytes bytes = bytes_of(p);
  const int side = p.direction == Direction::dx ? p.block.cols : p.block.rows;
  // Share of the memory's rate. Narrow blocks spend their time on the tokens' fragments.
  const double share = side >= 32 ? (p.m <= 16 ? 0.9 : 0.82) : side == 16 ? (p.m <= 16 ? 0.42 : 0.32) : 0.1;
  const double ffma = p.dtype == DType::f32 && !p.tf32
                          ? useful_flops(p, static_cast<double>(p.m)) / (kFfmaFlops * device.clocks())
                          : 0;
  const double few = p.direction == Direction::dx ? 1.3 : 1;
  return kLaunchUs + 0.8 +
         few * us(std::max(memory_seconds(bytes.stored / share + bytes.tokens, device), ffma));
}

// The time that a thread block takes before its first block and after its last, its share of X, and the
// stored bytes as a stream.
double predict_decode_staged_us(const Problem& p, const plan::Machine& machine) {
  const Device device(machine);
  const int side = p.block.rows < 16 ? 0 : 1;
  const double x = static_cast<double>(p.m * p.cols) * static_cast<double>(size_of(p.dtype));
  return kStagedUs[side] + kStagedXUs[side] * x +
         us(bytes_of(p).stored / (kStagedStream[side] * device.memory_bytes));
}

double predict_hopper_decode_us(const Problem& p, const plan::Machine& machine) {
  const Device device(machine);
  const double stored = bytes_of(p).stored, tokens = static_cast<double>((p.m + 7) / 8 * 8);
  const double start = kHopperDecodeUs + kHopperDecodeXUs * static_cast<double>(p.m * p.cols) * 2;
  if (p.block.rows == 16) {
    // X stays in shared memory, cut into as many ranges as its size requires, whose sums are added up.
    const double groups = std::ceil(tokens / 32), cols = static_cast<double>(p.cols),
                 rows = static_cast<double>(p.rows);
    const double ranges =
        std::clamp(std::exp2(std::ceil(std::log2(std::min(tokens, 32.0) * cols * 2 / 96e3))), 1.0, 8.0);
    const double passes = std::ceil(rows / 16 * groups * ranges / (64.0 * device.multiprocessors));
    const double sums = rows * tokens * 4 * (ranges - 1) / (kHopperSumBytesPerClock * device.clocks());
    const double multiplied = groups * stored / (kXInSharedBytesPerClock * device.clocks());
    return start + 1 + 3 * (passes - 1) +
           us(std::max(stored / (kXInSharedStream * device.memory_bytes), multiplied) + sums);
  }
  const double moved = stored * (1 + tokens / 32) / (kHopperDecodeBytesPerClock * device.clocks());
  return start + us(std::max(stored / (kHopperDecodeStream * device.memory_bytes), moved));
}

double predict_decode_block_rows_us(const Problem& p, const plan::Machine& machine) {
  const Device device(machine);
  const double stored = bytes_of(p).stored, tokens = static_cast<double>((p.m + 7) / 8 * 8);
  const double block_rows = static_cast<double>(p.rows) / std::min(p.block.rows, 32);
  const double x_us = kBlockRowXUs * static_cast<double>(p.m * p.cols) * 2;
  const std::int64_t pairs = device.multiprocessors / 2;
  if (p.block.rows == 16 && decode90::x_streamed::passes(p.m, p.rows, p.cols, p.blocks, pairs)) {
    const double moved = decode90::x_streamed::moved_bytes(p.rows, p.cols, p.blocks, pairs) /
                         (kXStreamedBytesPerClock * device.clocks());
    return kXStreamedUs + x_us + us(std::max(stored / (kXStreamedStream * device.memory_bytes), moved));
  }
  const double memory = std::min(kHopperDecodeStream * device.memory_bytes, block_rows * kLineBytes);
  const double tokens_us = p.block.rows == 16
                               ? us(static_cast<double>(p.blocks) * (4 + tokens) / kBlockRowRequests)
                               : us(stored * (1 + tokens / 32) / (kBlockRowBytesPerClock * device.clocks()));
  return kBlockRowUs + x_us + std::max(us(stored / memory), tokens_us);
}

}  // namespace sparseloom::kernels::cuda
