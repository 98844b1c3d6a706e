// Chooses the tile of mma/forward, and the block rows per thread block or the thread blocks per block row.
#include "kernels/bsr_linear/sm80/mma/forward/schedule.h"

#include <algorithm>
#include <cstdint>

#include "core/check.h"
#include "kernels/bsr_linear/sm80/mma/forward/tiles.h"

namespace sparseloom::kernels::cuda::mma::forward {
namespace {

using core::ceil_div;

/// The sizes of a product that a prediction needs.
struct Product {
  std::int64_t m, block_rows;
  double reduction;  // elements of an average block row
  int element_bytes;
  int multiprocessors;
  std::size_t shared_bytes;
};

/// Predicts whole waves of thread blocks. Each wave costs its start and then the bytes of its block rows at
/// the multiprocessor's share of L2 bandwidth.
double predicted_us(const Product& product, const TileShape& tile, int block_rows_in_turn, int segments) {
  constexpr double kBytesPerUs = 45.5e3;  // L2 to one multiprocessor of an H200 (see tiles.h)
  // Launch, list, index entries and first chunk: the measured intercept of the time over density, per wave.
  constexpr double kStartUs = 3;
  constexpr double kExchangeUs = 1.5;      // exchange of a team's partial sums
  constexpr std::size_t kReserved = 1024;  // shared memory that the system reserves per thread block
  const std::int64_t resident = std::min<std::int64_t>(
      tile.blocks_per_sm, (product.shared_bytes + kReserved) / (tile.shared_bytes() + kReserved));
  const std::int64_t m_tiles = ceil_div(product.m, tile.tokens);
  // Absent tokens cost no bytes.
  const double tokens = static_cast<double>(std::min<std::int64_t>(product.m, tile.tokens));
  const double chunks = product.reduction / (tile.chunk_bytes / product.element_bytes) + 0.5,
               chunk_bytes = (tokens + tile.block_row) * tile.chunk_bytes;
  const std::int64_t blocks = m_tiles * ceil_div(product.block_rows, block_rows_in_turn) * segments;
  const double rounds = static_cast<double>(ceil_div(blocks, resident * product.multiprocessors));
  const double sharing = static_cast<double>(std::min(resident, ceil_div(blocks, product.multiprocessors)));
  const double bytes = chunks / segments * chunk_bytes + tokens * tile.block_row * product.element_bytes;
  const double turn = block_rows_in_turn * bytes * sharing / kBytesPerUs;
  // Block rows differ in length: on average, a quarter of a thread block's work is waited for at the end.
  // Thread blocks of a single block row do not pay this cost.
  return rounds * (kStartUs + turn) + (block_rows_in_turn > 1 ? turn / 4 : 0) +
         (segments > 1 ? kExchangeUs : 0);
}

}  // namespace

Schedule schedule_of(const Problem& p, const plan::Machine& machine) {
  const bool dx = p.direction == Direction::dx;
  const std::int64_t width = dx ? p.cols : p.rows;
  const int side = dx ? p.block.cols : p.block.rows;  // along the outputs
  if (p.m == 0 || width == 0) return {};
  const std::int64_t block_rows = ceil_div(width, side);
  const double stored = static_cast<double>(p.blocks) * (dx ? p.block.rows : p.block.cols);
  const Product product{p.m,
                        block_rows,
                        stored / static_cast<double>(block_rows),
                        static_cast<int>(size_of(p.dtype)),
                        std::max(machine.cuda.multiprocessors, 1),
                        machine.cuda.shared_bytes};
  Schedule best;
  double best_us = 1e30;
  const auto consider = [&](const TileShape& tile, int block_rows_in_turn, int segments) {
    const double us = predicted_us(product, tile, block_rows_in_turn, segments);
    if (us >= best_us) return;
    best_us = us;
    best.tile_m = tile.tokens, best.tile_n = tile.block_row;
    best.tile_k = tile.chunk_bytes / product.element_bytes;
    best.tiles_in_turn = block_rows_in_turn, best.cluster = segments;
  };
  const auto fits = [&](const TileShape& tile) {
    return tile.block_row == side && tile.shared_bytes() <= product.shared_bytes;
  };
  for (const TileShape& tile : kTiles)
    for (int turn = 1; fits(tile) && turn <= 16 && turn < 2 * block_rows; turn *= 2) consider(tile, turn, 1);
  // Only the machine code for sm_90 supports clusters; code compiled from the PTX of sm_80 does not.
  for (const TileShape& tile : kTiles)
    for (int segments = 2;
         fits(tile) && has_teams(tile) && machine.cuda.sm == 90 && segments <= kMostSegments; segments *= 2)
      consider(tile, 1, segments);
  return best;
}

}  // namespace sparseloom::kernels::cuda::mma::forward
