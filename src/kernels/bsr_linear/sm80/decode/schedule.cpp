// Chooses the strip width and the warps of decode.
#include "kernels/bsr_linear/sm80/decode/schedule.h"

#include <algorithm>
#include <cstdint>

#include "kernels/bsr_linear/sm80/decode/entry.h"

namespace sparseloom::kernels::cuda::decode {
namespace {

/// The widest strip with which (nearly) every multiprocessor gets a thread block. X is read once per strip,
/// so wide strips read it less often.
int strip_width(const Problem& p, std::int64_t outputs, int out_side, int multiprocessors) {
  const int widest = std::min(out_side, 32);
  // dX reads rows across a block: strips narrower than 32 bytes would leave half of each sector unused.
  const int narrowest =
      p.direction == Direction::dx ? std::min(widest, 32 / static_cast<int>(size_of(p.dtype))) : 8;
  int strip = widest;
  while (strip > narrowest && (outputs + strip - 1) / strip * 10 < std::int64_t{9} * multiprocessors)
    strip /= 2;
  return strip;
}

/// Warps of a thread block: as many as allow all thread blocks to be resident at once, since each waits
/// longer than it computes; 4 if they cannot all be resident. There are no more warps than a block row has
/// chunks on average, but at least 4, for longer block rows.
int warps_of(int strip, int token_tiles, std::int64_t thread_blocks, double chunks,
             const runtime::CudaDevice& device) {
  constexpr std::int64_t kReserved = 1024;  // shared memory that the system reserves per thread block
  const auto ring = static_cast<std::int64_t>(ring_bytes(strip, token_tiles));
  const auto capacity = static_cast<std::int64_t>(device.shared_bytes);
  const int multiprocessors = std::max(device.multiprocessors, 1);
  const std::int64_t resident = (thread_blocks + multiprocessors - 1) / multiprocessors;
  const std::int64_t by_memory = ((capacity + kReserved) / resident - kReserved) / ring;
  const std::int64_t by_registers = warps_per_multiprocessor(strip, token_tiles) / resident;
  std::int64_t warps = std::min(by_memory, by_registers);
  if (warps < 1) warps = std::min<std::int64_t>(4, capacity / ring);
  warps = std::min(
      {warps, std::int64_t{kMostWarps}, std::max<std::int64_t>(static_cast<std::int64_t>(chunks) + 1, 4)});
  return static_cast<int>(std::max<std::int64_t>(warps, 1));
}

}  // namespace

Schedule schedule_of(const Problem& p, const plan::Machine& machine) {
  const bool forward = p.direction == Direction::forward;
  const std::int64_t outputs = forward ? p.rows : p.cols;
  const int out_side = forward ? p.block.rows : p.block.cols, k_side = forward ? p.block.cols : p.block.rows;
  if (p.m == 0 || outputs == 0) return {};
  const int strip = strip_width(p, outputs, out_side, machine.cuda.multiprocessors);
  const int token_tiles = p.m <= 16 ? 1 : p.m <= 32 ? 2 : 4;
  const int chunk = kChunkBytes / static_cast<int>(size_of(p.dtype));
  const std::int64_t block_rows = (outputs + out_side - 1) / out_side;
  const double chunks = static_cast<double>(p.blocks * k_side) /
                        static_cast<double>(block_rows * chunk);  // chunks of a block row
  Schedule schedule;
  schedule.tile_m = 16 * token_tiles, schedule.tile_n = strip, schedule.tile_k = chunk;
  schedule.warps = warps_of(strip, token_tiles, block_rows * (out_side / strip), chunks, machine.cuda);
  return schedule;
}

}  // namespace sparseloom::kernels::cuda::decode
