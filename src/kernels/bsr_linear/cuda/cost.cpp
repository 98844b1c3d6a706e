// Cost model of the CUDA kernels, except those for small batches (cost_decode.cpp).
#include "kernels/bsr_linear/cuda/cost.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/bsr_linear/cuda/cost_terms.h"
#include "kernels/bsr_linear/sm80/dw_mma/cut.h"
#include "kernels/bsr_linear/sm80/fp32_ffma/sdd_cut.h"
#include "kernels/bsr_linear/sm90/dw_wgmma_regions/entry.h"
#include "kernels/bsr_linear/sm90/forward_mma/entry.h"
#include "kernels/bsr_linear/sm90/forward_wgmma/entry.h"
#include "kernels/bsr_linear/sm90/merged/merge_blocks.h"

namespace sparseloom::kernels::cuda {
namespace {

// The share of the peak that cuBLAS reached on an H200 in every dtype: 796 of 1070 TF/s bf16, 400 of 535
// TF32, 49 of 67 fp32.
constexpr double kVendorShare = 0.74;
// The same for e4m3 without fast accumulation (the measurement included the scatter of W), and for TF32 dW,
// whose operands are contiguous along the tokens: cuBLAS takes 1.5 times as long there as in forward.
constexpr double kVendorF8Share = 0.72, kVendorTf32DwShare = 0.5;
// What the gather of dW's blocks takes beyond a launch and its bytes.
constexpr double kGatherUs = 2;
// A tile's first copies, its stores and its start on the multiprocessor, in addition to its products.
constexpr double kTileUs = 1.3;
constexpr double kTilesAtOnce[] = {3, 3, 2, 2, 2};  // of a multiprocessor, by block side
// Tokens of a tile in large batches, by block side.
constexpr double kWideTokens[] = {128, 128, 256, 256, 128};

// Useful flops per clock and multiprocessor that the kernels reach on long reductions, by the block's side
// along the outputs (8, 16, 32, 64, 128). They are fitted to the cells of bench/results/h200/gpu.json (132
// multiprocessors at 1.98 GHz; 1000 is 261 TF/s).
constexpr double kMmaDds[] = {150, 545, 800, 1170, 1510};
constexpr double kMmaSdd[] = {120, 375, 840, 1040, 1330};
constexpr double kTf32OfMma = 0.43;
constexpr double kFfma[] = {60, 130, 165, kFfmaFlops, kFfmaFlops};
constexpr double kF8OfFfma = 0.3;  // each product needs a load from shared memory
// By the length of a gathered row. Rows of 16 and 32 bytes, which 16-bit blocks of 8 and 16 gather, use half
// or less of the sectors that L2 sends.
constexpr double kNarrowGather[] = {0.45, 0.57, 1, 1, 1, 1};

// L2 to the multiprocessors for K tiles of 128-byte rows, with thread blocks in step: 10 TB/s on an H200.
constexpr double kWgmmaL2BytesPerClock = 38.5;

// L2 to one multiprocessor of an H200, with one thread block and with two.
constexpr double kPortBytesPerClock[] = {43, 54};

// Clocks of a thread block of sm90_mma: for a K tile of 64, which all warps wait for and pass over, and for a
// block times 64 tokens.
constexpr double kMmaStepClocks = 225, kMmaBlockClocks = 21;

// dW by sm80_mma and sm80_ffma with the tokens cut: partial sums are written, and a launch of their own adds
// them up (fitted to layers of 768 to 2048 features).
constexpr double kPiecesUs = 9;
constexpr double kMmaSddL2BytesPerClock = 25;  // block rows of few blocks read dY just for those

// Merging has to find the units, with three dependent reads of the index.
constexpr double kMergeUs = 3;

int log2_of(int side) { return std::max(0, 31 - __builtin_clz(static_cast<unsigned>(side)) - 3); }

/// Cost of the sm_80 tile kernels. widest: the most outputs of a tile in small batches. least: seconds that
/// the work items of dW take in any case.
double tiled_us(const Problem& p, const Device& device, const double (&dds)[5], const double (&sdd)[5],
                double scale, int widest, double least = 0) {
  const bool dw = p.direction == Direction::dw;
  const int side = p.direction == Direction::dx ? p.block.cols : p.block.rows;
  const int gathered = p.direction == Direction::dx ? p.block.rows : p.block.cols;
  const double m = static_cast<double>(p.m);
  const int row_bytes = gathered * static_cast<int>(size_of(p.dtype));
  const double rate =
      (dw ? sdd : dds)[log2_of(side)] * kNarrowGather[log2_of(row_bytes / 2)] * scale * device.clocks();
  const Bytes bytes = bytes_of(p);
  const double memory = memory_seconds(bytes.stored + bytes.tokens, device);
  if (dw) return kLaunchUs + us(0.5 * memory + std::max(useful_flops(p, m) / rate, least));
  // Small batches leave multiprocessors with one tile or none, and nothing hides the latency of that tile.
  const double width = static_cast<double>(p.direction == Direction::forward ? p.rows : p.cols),
               block_rows = std::ceil(width / side);
  const double wide = kWideTokens[log2_of(side)],
               places = kTilesAtOnce[log2_of(side)] * device.multiprocessors;
  const double tokens = std::ceil(m / wide) * block_rows >= places ? wide : 64;
  const double tiles = std::ceil(m / tokens) * block_rows, slices = std::ceil(width / std::min(side, widest));
  const double few =
      tokens < wide ? 0.75 * std::min(1.0, std::ceil(m / tokens) * slices / device.multiprocessors) : 1;
  return kLaunchUs + tiles * kTileUs / places +
         us(memory + useful_flops(p, std::ceil(m / tokens) * tokens) / (rate * few));
}

double dense_peak(const Problem& p, const Device& device) {
  // Flops per clock and multiprocessor of 8-bit, 16-bit, TF32 and FFMA on sm_80 and sm_90. Consumer GPUs have
  // less, in the same order.
  const double tensor = device.sm >= 90 ? 8192 : 4096;
  return (is_scaled(p.dtype)      ? 2 * tensor
          : p.dtype != DType::f32 ? tensor
          : p.tf32                ? tensor / 2
                                  : 512) /
         2 * device.clocks();
}

// sm90_wgmma_sdd: the time that its launcher expects for the work items it deals out, or that of the memory
// traffic if it is longer.
double predict_wgmma_dw_us(const Problem& p, const Device& device, const wgmma_sdd::StepShape& step,
                           bool narrow) {
  if (p.blocks == 0) return kLaunchUs;
  const std::int64_t block_rows = (p.rows + p.block.rows - 1) / p.block.rows,
                     block_columns = (p.cols + p.block.cols - 1) / p.block.cols;
  const wgmma_sdd::Size size =
      wgmma_sdd::size_of_product(step, p.block, block_rows, p.blocks, p.m, device.multiprocessors);
  const wgmma_sdd::Way way = choose_way(size, block_rows, block_columns, narrow);
  const Bytes bytes = bytes_of(p);
  const double read =
      bytes.tokens * step.column_bytes / (step.tokens * static_cast<double>(size_of(p.dtype)));
  // The first work items of all thread blocks read the same tokens for the first time, in bursts.
  const double memory = memory_seconds(1.1 * std::max(1.0, way.rounds()) * read + bytes.stored, device);
  // Operands of fp32 are rewritten before, at five sixths of the memory's rate.
  const double preparing =
      p.dtype == DType::f32 ? kLaunchUs + us(1.2 * memory_seconds(bytes.tokens + read, device)) : 0;
  // The constant covers finding the work item, the first copies and the last stores.
  return kLaunchUs + 4 + preparing + us(std::max(way.clocks() / device.clock_hz, memory));
}

// sm90_wgmma_dds: for every group of block rows a tile reads those K tiles, 128 bytes along the reduction, in
// which the group stores anything. Blocks are assumed to lie at random. Reads from L2, products and reads
// from memory overlap.
double predict_wgmma_dds_us(const Problem& p, const Device& device, bool narrow) {
  const bool dx = p.direction == Direction::dx, f8 = p.dtype == DType::f8e4m3;
  const bool promotes = f8 && !p.fast_accum;
  const double out = static_cast<double>(dx ? p.cols : p.rows),
               depth = static_cast<double>(dx ? p.rows : p.cols);
  const double size = static_cast<double>(size_of(p.dtype)), out_size = written_size(p);
  const int side = dx ? p.block.cols : p.block.rows, gathered = dx ? p.block.rows : p.block.cols;
  const double grid = std::max(1.0, std::ceil(out / side) * std::ceil(depth / gathered));
  // Half a K tile: 16-bit blocks of 32 share a K tile with their neighbours if there are many of them.
  // Otherwise these blocks, and 8-bit blocks of 64, have K tiles of 64 bytes, two to a step.
  const bool half = gathered * size == 64, own = half && (f8 || wgmma_dds::narrow_k_tiles(p));
  const double row = own ? 64 : 128, k_tiles = std::ceil(depth * size / row);
  const wgmma_dds::TileShape tile = narrow ? wgmma_dds::kNarrowTile : wgmma_dds::kWideTile;
  const double m = static_cast<double>(p.m), tokens = tile.tokens, outputs = tile.outputs;
  const double density = static_cast<double>(p.blocks) / grid;
  const double k_tile = half && !own ? 1 - (1 - density) * (1 - density) : density;
  // Similar block rows are multiplied together (plan/block_row_order.h). That saves less if most K tiles are
  // read in any case.
  const double at_random = 1 - std::pow(1 - k_tile, std::max(1.0, outputs / side));
  const double touched =
      side < 128 && !promotes ? at_random * (1 - 0.14 * std::min(1.0, (1 - at_random) / 0.2)) : at_random;
  const double m_tiles = std::ceil(m / tokens), tiles = m_tiles * std::ceil(out / outputs);
  const Bytes bytes = bytes_of(p);
  const double reads = tiles * k_tiles * touched * tokens * row + m_tiles * bytes.stored;
  // The last round of wide tiles takes as long with half of the multiprocessors idle. The constant includes
  // the loss over 8 rounds.
  const double rounds = tiles / device.multiprocessors;
  const double last_round = narrow || rounds < 1 ? 1 : std::max(1.0, std::ceil(rounds) / rounds / 1.03);
  const double l2 =
      last_round * reads / ((own ? 0.87 : 1.0) * device.l2_share * kWgmmaL2BytesPerClock * device.clocks());
  const double product = useful_flops(p, m_tiles * tokens) / (kVendorShare * 0.95 * dense_peak(p, device));
  const double each = k_tiles * touched * std::ceil(tiles / ((narrow ? 2.0 : 1.0) * device.multiprocessors));
  // Few tiles leave multiprocessors idle, and each is limited by its own port to L2, through which a step
  // copies X and the blocks.
  const double turns = std::ceil(tiles / device.multiprocessors);
  const double copied = (tokens + outputs * std::min(1.0, density / touched)) * row;
  const double port =
      k_tiles * touched * turns * copied / (kPortBytesPerClock[narrow && turns > 1] * device.clock_hz);
  // A step's latency, with the test and wait of each block row. Promoted sums also pass through registers.
  const double block_rows = std::ceil(outputs / side);
  const double latency =
      (200 + (narrow ? 300 : 100) * block_rows) * (promotes ? 1.7 : 1.0) * (own ? 0.5 : 1.0);
  const double steps = each * (latency + 256.0 * (row / 128) * density / touched) / device.clock_hz;
  // Stores of 16-bit outputs overlap in part with the next tile's products, and deferred stores
  // (kDeferredStore) overlap more, but neither overlaps with reads from memory. Other outputs and narrow
  // tiles overlap with nothing.
  const double stores = memory_seconds(m * out * out_size, device),
               loads = memory_seconds(bytes.stored + m * depth * size, device);
  const bool wide_halves = (size == 2 || (f8 && !promotes)) && out_size == 2 && !narrow;
  const double behind = !wide_halves ? 1.1 : size == 2 && side >= 64 ? 0.45 : 0.6;
  // Corrections fitted to measurements on an H200: slices of 32 lose to their many short wgmma if many blocks
  // are stored (16-bit ones less since X is in registers), tiles most of whose tokens are absent take twice
  // the time of their bytes, and promoted sums are added up in registers.
  const bool short_slice = std::min(side, gathered) == 32;
  const double of_16_bits =
      own ? (dx ? 1.07 : 1.01) : (dx ? 1.03 : 1) * (0.86 - 0.18 * density + 0.7 * density * density);
  const double short_slices = !short_slice ? 1
                              : size == 2  ? (narrow ? 0.8 : 1) * of_16_bits
                                           : 1 + 0.45 * std::max(0.0, density - 0.15);
  const double empty_tiles = p.m <= 64 ? 2 : 1, promoted = promotes ? 1.07 : 1;
  // With swap-AB fewer steps wait, and each for less.
  const double swap_ab = wide_halves && side >= 64 ? 0.95 : 1;
  // Two narrow tiles, of half a block row each, read the same X side by side.
  const double half_block_rows = narrow && side == 128 ? 0.87 : 1;
  // The first copies and the last stores of a thread block.
  const double ends = narrow ? 0.9 : 1.6;
  const double transposing =
      dx && p.dtype == DType::f32 ? kLaunchUs + us(2 * memory_seconds(bytes.stored, device)) : 0;
  const double products = short_slices * empty_tiles * promoted * swap_ab * half_block_rows *
                          std::max({l2, product, steps, port});
  // Narrow tiles read X for half as many outputs, which shows when memory is the limit.
  const double memory = 1.1 * stores + (narrow ? 1.05 : 1) * empty_tiles * loads;
  return kLaunchUs + ends + transposing + us(std::max(memory, behind * stores + products));
}

// The units are written once, from blocks read once, and are read back while L2 has them.
double predict_merging_us(const Problem& blocks, const Problem& units, const plan::Machine& machine) {
  const Device device(machine);
  return kLaunchUs + kMergeUs + us(memory_seconds(bytes_of(blocks).stored + bytes_of(units).stored, device));
}

}  // namespace

double predict_wgmma_us(const Problem& p, const plan::Machine& machine) {
  const Device device(machine);
  if (p.direction != Direction::dw) return predict_wgmma_dds_us(p, device, false);
  return predict_wgmma_dw_us(p, device, p.dtype == DType::f32 ? wgmma_sdd::kStepTf32 : wgmma_sdd::kStep16,
                             false);
}

double predict_wgmma_narrow_us(const Problem& p, const plan::Machine& machine) {
  const Device device(machine);
  return p.direction == Direction::dw ? predict_wgmma_dw_us(p, device, wgmma_sdd::kStep16, true)
                                      : predict_wgmma_dds_us(p, device, true);
}

double predict_merged_us(const Problem& p, const plan::Machine& machine, bool narrow) {
  const Problem units = merged(p, Merging::kWgmmaLeast);
  return predict_merging_us(p, units, machine) +
         (narrow ? predict_wgmma_narrow_us(units, machine) : predict_wgmma_us(units, machine));
}

// sm90_mma is limited by L2, from which every 512 outputs read X and every 64 tokens read the values, or with
// many blocks by mma.sync and what feeds it.
double predict_sm90_mma_us(const Problem& p, const plan::Machine& machine) {
  const Device device(machine);
  const bool dx = p.direction == Direction::dx;
  const double out = static_cast<double>(dx ? p.cols : p.rows),
               depth = static_cast<double>(dx ? p.rows : p.cols);
  const double m_tiles = std::ceil(static_cast<double>(p.m) / mma_dds::kTileTokens),
               tiles = m_tiles * std::ceil(out / mma_dds::kTileOutputs);
  // Figures of a whole tile; the last tile of a row of tiles may have fewer.
  const double k_tiles = std::ceil(depth / mma_dds::kKTile),
               blocks = static_cast<double>(p.blocks) * std::min(1.0, mma_dds::kTileOutputs / out);
  const double rounds = std::ceil(tiles / device.multiprocessors);
  const double read =
      tiles * 2 *
      (k_tiles * mma_dds::kTileTokens * mma_dds::kKTile + blocks * mma_dds::kSide * mma_dds::kSide);
  const double l2 = read / (device.l2_share * kWgmmaL2BytesPerClock * device.clocks());
  const double steps = rounds * (k_tiles * kMmaStepClocks + blocks * kMmaBlockClocks) / device.clock_hz;
  const Bytes bytes = bytes_of(p);
  return 2 * kLaunchUs + us(std::max({l2, steps, memory_seconds(bytes.stored + bytes.tokens, device)}));
}

double predict_sm90_mma_merged_us(const Problem& p, const plan::Machine& machine) {
  const Problem units = merged(p, Merging::kMmaLeast);
  return predict_merging_us(p, units, machine) + predict_sm90_mma_us(units, machine);
}

// Tiles step through K tiles of 32 along the reduction. An fp32 product is six 16-bit products.
double predict_bf16x3_us(const Problem& p, const plan::Machine& machine, bool narrow) {
  const Device device(machine);
  // dW adds a launch for what the bf16 parts cannot hold (fp32_bf16x3/tokens.h).
  if (p.direction == Direction::dw)
    return kLaunchUs + predict_wgmma_dw_us(p, device, wgmma_sdd::kStepBf16x3, false);
  const bool dx = p.direction == Direction::dx;
  const double out = static_cast<double>(dx ? p.cols : p.rows),
               depth = static_cast<double>(dx ? p.rows : p.cols);
  const int side = dx ? p.block.cols : p.block.rows, gathered = dx ? p.block.rows : p.block.cols;
  const wgmma_dds::TileShape& tile = narrow ? wgmma_dds::kNarrowBf16x3Tile : wgmma_dds::kBf16x3Tile;
  const double outputs = tile.outputs;
  const double m = static_cast<double>(p.m), m_tiles = std::ceil(m / tile.tokens),
               groups = std::ceil(out / tile.outputs), k_tiles = std::ceil(depth / 32);
  const double grid = std::max(1.0, std::ceil(out / side) * std::ceil(depth / gathered));
  const double density = static_cast<double>(p.blocks) / grid,
               touched = 1 - std::pow(1 - density, std::max(1.0, outputs / side));
  const Bytes bytes = bytes_of(p);
  const double reads = m_tiles * (groups * k_tiles * touched * 16384 + 1.5 * bytes.stored);
  const double l2 = reads / (device.l2_share * kWgmmaL2BytesPerClock * device.clocks());
  // In a K tile the two warpgroups multiply in turn, 12 products of 64 x outputs x 16 each if all block rows
  // store it. A warpgroup alone takes half of that and its latency: loads, splitting X into bf16x3, adding
  // up.
  const double multiply = 2 * 12 * outputs / 2 * density / touched;
  const double step =
      std::max(multiply, multiply / 2 + 550) / (0.9 * device.clock_hz);  // the clock drops under load
  const double steps = k_tiles * touched * std::ceil(m_tiles * groups / device.multiprocessors) * step;
  const double stores = memory_seconds(m * out * 4, device),
               loads = memory_seconds(bytes.stored + m * depth * 4, device);
  const double splitting = kLaunchUs + 2 + us(2.5 * memory_seconds(bytes.stored, device));
  // Measured over predicted time on an H200: wgmma of 32 and 64 outputs leave less time to split X beside
  // them.
  const int slice = std::min(side, tile.outputs);
  const double slower = slice == 128 ? 1.15 : slice == 64 ? 1.2 : narrow ? 1.25 : 1.35;
  return kLaunchUs + 8 + splitting + us(0.5 * stores + std::max({l2, loads, slower * steps}));
}

double predict_mma_us(const Problem& p, const plan::Machine& machine) {
  const Device device(machine);
  const double scale = p.dtype == DType::f32 ? kTf32OfMma : 1;
  if (p.direction != Direction::dw || p.blocks == 0) return tiled_us(p, device, kMmaDds, kMmaSdd, scale, 128);
  const mma_sdd::Cut cut = mma_sdd::cut_tokens(mma_sdd::size_of_product(p), device.multiprocessors);
  const double read = cut.slower * cut.read_bytes / (kMmaSddL2BytesPerClock * device.clocks());
  return tiled_us(p, device, kMmaDds, kMmaSdd, scale / cut.slower, 128, read) +
         (cut.pieces > 1 ? kPiecesUs : 0);
}

double predict_ffma_us(const Problem& p, const plan::Machine& machine) {
  const Device device(machine);
  const double scale = p.dtype == DType::f8e4m3 ? kF8OfFfma : 1;
  if (p.direction != Direction::dw || p.blocks == 0) return tiled_us(p, device, kFfma, kFfma, scale, 64);
  const ffma::SddCut cut = ffma::cut_of_product(p, device.multiprocessors);
  const double alone = ffma::kSddTokenSeconds * static_cast<double>(std::min(p.m, cut.piece_tokens));
  return tiled_us(p, device, kFfma, kFfma, scale, 64, alone) + (cut.pieces > 1 ? kPiecesUs : 0);
}

double predict_dense_us(const Problem& p, const plan::Machine& machine) {
  const Device device(machine);
  const Bytes bytes = bytes_of(p);
  const double flops =
      2.0 * static_cast<double>(p.m) * static_cast<double>(p.rows) * static_cast<double>(p.cols);
  const bool tf32_dw = p.direction == Direction::dw && p.dtype == DType::f32 && p.tf32;
  const double share = is_scaled(p.dtype) ? kVendorF8Share : tf32_dw ? kVendorTf32DwShare : kVendorShare;
  // dW of few features gives cuBLAS few tiles, which it does not cut along the tokens.
  const double tiles = std::max(1.0, static_cast<double>(p.rows) * static_cast<double>(p.cols) / (128 * 128));
  const double filled =
      p.direction == Direction::dw ? std::pow(std::min(1.0, 2 * tiles / device.multiprocessors), 0.75) : 1;
  const double product = std::max(flops / (share * filled * dense_peak(p, device)),
                                  memory_seconds(bytes.dense + bytes.tokens, device));
  // dW's product is gathered while L2 still has it.
  const double moved = p.direction == Direction::dw ? bytes.stored : bytes.stored + bytes.dense;
  double total = 2 * kLaunchUs + (p.direction == Direction::dw ? kGatherUs : 0) +
                 us(product + memory_seconds(moved, device));
  const double written = static_cast<double>(p.m) * static_cast<double>(p.rows) * written_size(p);
  if (p.activation != Activation::none || p.residual)  // an extra pass over what the product wrote
    total += kLaunchUs + us(memory_seconds((p.residual ? 3.0 : 2.0) * written, device));
  // An f32 output of 8-bit operands needs an extra pass for the bias and one each for the scales of tokens
  // and of outputs, of which the plan is not told.
  if (is_scaled(p.dtype) && p.out == DType::f32)
    total += (p.bias ? 3 : 2) * (kLaunchUs + us(memory_seconds(2 * written, device)));
  return total;
}

}  // namespace sparseloom::kernels::cuda
