// Predicted time of forward and dX by wgmma.
#include <algorithm>
#include <cmath>

#include "kernels/bsr_linear/sm90/wgmma/forward/entry.h"
#include "kernels/bsr_linear/sm90/wgmma/forward/row_parts.h"

namespace sparseloom::kernels::cuda::wgmma::forward {
namespace {

// Constants for 16-bit forward and dX, fitted to the sweeps of an H100 and an H200 whose seeds docs/log names
// (2026-11-25).
struct Fit {
  double start_us, round_us;
  double chain, chain_row;  // ns per step and per block row of the tile: for the tile that ends last,
  double step, step_row;    // and for all tiles, whose waits overlap
  double flops, slices;     // 1e12 per second; cost of the short wgmmas of blocks of 32 outputs
  double streams;           // share of DRAM bytes not overlapped by the products
};
// Wide tiles, then narrow; forward, then dX.
constexpr Fit kFits[2][2] = {{{3.47, 1.22, 440, 0, 19.6, 13.7, 771, 0.265, 0.433},
                              {3.09, 1.33, 427, 3.78, 119, 55.9, 862, 0.331, 0.45}},
                             {{3.37, 0.139, 181, 24.9, 195, 0, 408, 0.043, 0.509},
                              {3.21, 0.239, 192, 12.1, 63.2, 78.9, 458, 0.076, 0.483}}};
// Small blocks are merged first, for wide tiles: the launch, and factors for the bytes of blocks and units.
// Forward, then dX.
constexpr double kMergeUs[] = {4.5, 4.36}, kMerged[] = {1.21, 1.46};

// Factor for copies whose rows each touch two lines of L2, in forward and dX: from the same sweeps, and the
// group `masks` at 1000 x 3000 x 5000.
constexpr double kOffLines[] = {1.2, 1.45};

// Bandwidth from L2 to one multiprocessor of an H200, with one thread block and with two.
constexpr double kPortBytesPerClock[] = {43, 54};

}  // namespace

// A tile steps through the K tiles of 64 in which any of its block rows stores a block.
double predict_16_bit_us(const Problem& p, const Device& device, bool narrow) {
  const bool dx = p.direction == Direction::dx;
  const Fit& fit = kFits[narrow][dx];
  const TileShape tile = narrow ? kNarrowTile : kWideTile;
  const Work blocks = work_of(p), w = merged_work(blocks);
  const bool merges = w.side > blocks.side || w.gathered > blocks.gathered;
  const double rows = std::max(1.0, tile.outputs / w.side), k_tiles = std::ceil(w.depth / 64);
  // Two blocks of 32 share a K tile.
  const auto of_k_tile = [&](double density) {
    return w.gathered == 32 && !w.banded ? 1 - (1 - density) * (1 - density) : density;
  };
  const double density = of_k_tile(w.density), steps = touched(w, density, rows);
  const double longest =
      w.banded ? steps
               : std::max(steps, 1 - std::pow(1 - density, rows - 1) * (1 - of_k_tile(w.row_density)));
  const double m_tiles = std::ceil(w.m / tile.tokens), tiles = m_tiles * std::ceil(w.out / tile.outputs);
  const double stored = w.out * w.depth * w.density * w.size;
  const double flops = 2 * m_tiles * tile.tokens * w.out * w.depth * w.density;
  const double products = rate_us(flops, fit.flops, device) * (w.side == 32 ? 1 + fit.slices : 1);
  const double tile_chain = k_tiles * steps * (fit.step + fit.step_row * rows);
  const double merging = kMergeUs[dx] + kMerged[dx] * us(memory_seconds(bytes_of(p).stored + stored, device));
  const double copies = w.off_lines ? kOffLines[dx] : 1;
  return fit.start_us + fit.round_us * std::ceil(tiles / device.multiprocessors) + (merges ? merging : 0) +
         copies * (chain_us(k_tiles * longest * (fit.chain + fit.chain_row * rows), device) +
                   std::max(products, chain_us(tile_chain * tiles / device.multiprocessors, device))) +
         fit.streams * us(memory_seconds(stored + bytes_of(p).tokens, device));
}

// For every group of block rows, a tile reads the K tiles (128 bytes along the reduction) in which the group
// stores a block. Blocks are assumed to lie at random. Reads from L2, products and DRAM reads overlap.
double predict_32_and_8_bit_us(const Problem& p, const Device& device, bool narrow, double out_size,
                               bool promotes) {
  const bool dx = p.direction == Direction::dx, f8 = p.dtype == DType::f8e4m3;
  const double out = static_cast<double>(dx ? p.cols : p.rows),
               depth = static_cast<double>(dx ? p.rows : p.cols);
  const double size = static_cast<double>(size_of(p.dtype));
  const int side = dx ? p.block.cols : p.block.rows, gathered = dx ? p.block.rows : p.block.cols;
  const double grid = std::max(1.0, std::ceil(out / side) * std::ceil(depth / gathered));
  // 8-bit blocks of 64 have K tiles of 64 bytes, two to a step.
  const bool own = gathered * size == 64;
  const double row = own ? 64 : 128, k_tiles = std::ceil(depth * size / row);
  const TileShape tile = narrow ? kNarrowTile : kWideTile;
  const double m = static_cast<double>(p.m), tokens = tile.tokens, outputs = tile.outputs;
  const double density = static_cast<double>(p.blocks) / grid;
  // Similar block rows are multiplied together (plan/block_row_order.h). That saves less if most K tiles are
  // read anyway.
  const double at_random = 1 - std::pow(1 - density, std::max(1.0, outputs / side));
  const double touched =
      side < 128 && !promotes ? at_random * (1 - 0.14 * std::min(1.0, (1 - at_random) / 0.2)) : at_random;
  const double m_tiles = std::ceil(m / tokens), tiles = m_tiles * std::ceil(out / outputs);
  const Bytes bytes = bytes_of(p, out_size);
  const double reads = tiles * k_tiles * touched * tokens * row + m_tiles * bytes.stored;
  // The last wave of wide tiles takes as long with half of the multiprocessors idle. The constant includes
  // the loss over 8 waves.
  const double rounds = tiles / device.multiprocessors;
  const double last_round = narrow || rounds < 1 ? 1 : std::max(1.0, std::ceil(rounds) / rounds / 1.03);
  const double l2 =
      last_round * reads / ((own ? 0.87 : 1.0) * device.l2_share * kWgmmaL2BytesPerClock * device.clocks());
  const double product = useful_flops(p, m_tiles * tokens) / (kVendorShare * 0.95 * dense_peak(p, device));
  const double steps_in_turn =
      k_tiles * touched * std::ceil(tiles / ((narrow ? 2.0 : 1.0) * device.multiprocessors));
  // Few tiles leave multiprocessors idle. Each is limited by its own port to L2, through which a step copies
  // X and the blocks.
  const double turns = std::ceil(tiles / device.multiprocessors);
  const double copied = (tokens + outputs * std::min(1.0, density / touched)) * row;
  const double port =
      k_tiles * touched * turns * copied / (kPortBytesPerClock[narrow && turns > 1] * device.clock_hz);
  // A step's latency includes the test and wait of each block row. Promoted sums also pass through registers.
  const double block_rows = std::ceil(outputs / side);
  const double latency =
      (200 + (narrow ? 300 : 100) * block_rows) * (promotes ? 1.7 : 1.0) * (own ? 0.5 : 1.0);
  const double steps = steps_in_turn * (latency + 256.0 * (row / 128) * density / touched) / device.clock_hz;
  // Stores of 16-bit outputs partly overlap with the next tile's products, and deferred stores
  // (kDeferredStore) overlap more, but neither overlaps with DRAM reads. Other outputs and narrow tiles
  // overlap with nothing.
  const double stores = memory_seconds(m * out * out_size, device),
               loads = memory_seconds(bytes.stored + m * depth * size, device);
  const bool wide_halves = f8 && !promotes && out_size == 2 && !narrow;
  const double exposed_stores = wide_halves ? 0.6 : 1.1;
  // Corrections fitted to measurements on an H200: slices of 32 lose to their many short wgmma if many blocks
  // are stored, tiles whose tokens are mostly absent take twice the time of their bytes, and promoted sums
  // are added up in registers.
  const bool short_slice = std::min(side, gathered) == 32;
  const double short_slices = short_slice ? 1 + 0.45 * std::max(0.0, density - 0.15) : 1;
  const double empty_tiles = p.m <= 64 ? 2 : 1, promoted = promotes ? 1.07 : 1;
  // With swap-AB fewer steps wait, each for less time.
  const double swap_ab = wide_halves ? 0.95 : 1;
  // Two adjacent narrow tiles, of half a block row each, read the same X.
  const double half_block_rows = narrow && side == 128 ? 0.87 : 1;
  // The first copies and the last stores of a thread block.
  const double ends = narrow ? 0.9 : 1.6;
  const double transposing =
      dx && p.dtype == DType::f32 ? kLaunchUs + us(2 * memory_seconds(bytes.stored, device)) : 0;
  const double products = short_slices * empty_tiles * promoted * swap_ab * half_block_rows *
                          std::max({l2, product, steps, port});
  // Narrow tiles read X for half as many outputs, which costs time when DRAM is the limit.
  const double memory = 1.1 * stores + (narrow ? 1.05 : 1) * empty_tiles * loads;
  return kLaunchUs + ends + transposing + us(std::max(memory, exposed_stores * stores + products));
}

}  // namespace sparseloom::kernels::cuda::wgmma::forward
