#include "kernels/cuda/cost.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cuda/cost_terms.h"
#include "kernels/cuda/sm80/ffma_sdd_cut.h"
#include "kernels/cuda/sm80/mma_sdd_cut.h"
#include "kernels/cuda/sm90/merge_blocks.h"
#include "kernels/cuda/sm90/mma_dds.h"
#include "kernels/cuda/sm90/wgmma_dds.h"
#include "kernels/cuda/sm90/wgmma_sdd_region.h"

namespace sparseloom::kernels::cuda {
namespace {

// Of the peak, what cuBLAS reached on an H200 in every dtype: 796 of 1070 TF/s bf16, 400 of 535 TF32, 49 of
// 67 fp32.
constexpr double kVendorShare = 0.74;
// The same for e4m3 without fast accumulation, scattering W included in what was measured. And for TF32 dW,
// whose operands lie along their tokens: cuBLAS took 1036 us for 8192 x 4096 x 4096, where forward takes 700.
constexpr double kVendorF8Share = 0.72, kVendorTf32DwShare = 0.5;
// What gathering dW's blocks takes beyond a launch and its bytes.
constexpr double kGatherUs = 2;
// A tile's first copies, its stores and its turn on the multiprocessor, beside its products.
constexpr double kTileUs = 1.3;
constexpr double kTilesAtOnce[] = {3, 3, 2, 2, 2};  // of a multiprocessor, by side
constexpr double kWideTokens[] = {128, 128, 256, 256, 128};

// Useful flops per clock and multiprocessor that the kernels reach on long reductions, by the side of a block
// across the reduction (8, 16, 32, 64, 128): fitted to the cells of bench/results/h200/gpu.json (a
// multiprocessor at 1.98 GHz of 132; 1000 is 261 TF/s).
constexpr double kMmaDds[] = {150, 545, 800, 1170, 1510};
constexpr double kMmaSdd[] = {120, 375, 840, 1040, 1330};
constexpr double kTf32OfMma = 0.43;
constexpr double kFfma[] = {60, 130, 165, kFfmaFlops, kFfmaFlops};
constexpr double kF8OfFfma = 0.3;  // one load from shared memory for each product
// Rows of 16 and 32 bytes, which is what 16-bit blocks of 8 and 16 gather, use half and less of the sectors
// L2 sends.
constexpr double kNarrowGather[] = {0.45, 0.57, 1, 1, 1, 1};

// L2 to the multiprocessors for slabs of 128-byte rows, thread blocks in step: 10 TB/s on an H200.
constexpr double kWgmmaL2BytesPerClock = 38.5;

// From L2 to one multiprocessor, on an H200: to one thread block, and to two.
constexpr double kPortBytesPerClock[] = {43, 54};

// sm90_mma, of a thread block: a slab of 64, waited for and passed over by all warps, and a block times 64
// tokens.
constexpr double kPanelStepClocks = 225, kPanelBlockClocks = 21;

// dw by sm80_mma and sm80_ffma: partial sums written, and added up by a launch of their own; 9 to 13 us in
// layers of 768 to 2048 features.
constexpr double kPiecesUs = 9;
constexpr double kMmaSddL2BytesPerClock = 25;  // block rows of few blocks read dY for those alone

// Merging: finding the units, three dependent reads of the index.
constexpr double kMergeUs = 3;

int log2_of(int side) { return std::max(0, 31 - __builtin_clz(static_cast<unsigned>(side)) - 3); }

// widest: outputs of a tile where there are few tokens. least: seconds, of dw, that its items take in any
// case.
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
  // Few tokens leave multiprocessors with one tile or none, whose latency nothing hides.
  const double width = static_cast<double>(p.direction == Direction::forward ? p.rows : p.cols),
               lines = std::ceil(width / side);
  const double wide = kWideTokens[log2_of(side)],
               places = kTilesAtOnce[log2_of(side)] * device.multiprocessors;
  const double tokens = std::ceil(m / wide) * lines >= places ? wide : 64;
  const double tiles = std::ceil(m / tokens) * lines, slices = std::ceil(width / std::min(side, widest));
  const double few =
      tokens < wide ? 0.75 * std::min(1.0, std::ceil(m / tokens) * slices / device.multiprocessors) : 1;
  return kLaunchUs + tiles * kTileUs / places +
         us(memory + useful_flops(p, std::ceil(m / tokens) * tokens) / (rate * few));
}

double dense_peak(const Problem& p, const Device& device) {
  // Flops per clock and multiprocessor: 8-bit, 16-bit, TF32 and FFMA on sm_80 and sm_90; consumer parts have
  // less and only rank alike.
  const double tensor = device.sm >= 90 ? 8192 : 4096;
  return (is_scaled(p.dtype)      ? 2 * tensor
          : p.dtype != DType::f32 ? tensor
          : p.tf32                ? tensor / 2
                                  : 512) /
         2 * device.clocks();
}

// sm90_wgmma_sdd: what its launcher expects of the items it deals, and the memory's rate where that is less.
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
  // The first items of all thread blocks read the same tokens for the first time, in bursts.
  const double memory = memory_seconds(1.1 * std::max(1.0, way.rounds()) * read + bytes.stored, device);
  // Operands of fp32 are written anew before, at five sixths of the memory's rate.
  const double preparing =
      p.dtype == DType::f32 ? kLaunchUs + us(1.2 * memory_seconds(bytes.tokens + read, device)) : 0;
  // Finding the item, the first copies, the last stores.
  return kLaunchUs + 4 + preparing + us(std::max(way.clocks() / device.clock_hz, memory));
}

// A tile reads a slab of 128 bytes along the reduction for every line group that
// stores anything there; blocks are taken to lie at random. What is read from L2, multiplied and read from
// memory overlaps.
double predict_wgmma_dds_us(const Problem& p, const Device& device, bool narrow) {
  const bool dx = p.direction == Direction::dx, f8 = p.dtype == DType::f8e4m3;
  const bool promotes = f8 && !p.fast_accum;
  const double out = static_cast<double>(dx ? p.cols : p.rows),
               depth = static_cast<double>(dx ? p.rows : p.cols);
  const double size = static_cast<double>(size_of(p.dtype)), out_size = written_size(p);
  const int side = dx ? p.block.cols : p.block.rows, gathered = dx ? p.block.rows : p.block.cols;
  const double grid = std::max(1.0, std::ceil(out / side) * std::ceil(depth / gathered));
  // Half a slab: 16-bit blocks of 32 share one with their neighbours where there are many; else they, and
  // 8-bit ones of 64, are slabs of 64 bytes, two to a step.
  const bool half = gathered * size == 64, own = half && (f8 || wgmma_dds::narrow_slabs(p));
  const double row = own ? 64 : 128, slabs = std::ceil(depth * size / row);
  const wgmma_dds::TileShape tile = narrow ? wgmma_dds::kNarrowTile : wgmma_dds::kWideTile;
  const double m = static_cast<double>(p.m), tokens = tile.tokens, outputs = tile.outputs;
  const double density = static_cast<double>(p.blocks) / grid;
  const double slab = half && !own ? 1 - (1 - density) * (1 - density) : density;
  // Like lines are multiplied together (plan/line_order.h), which saves less where most slabs are read in any
  // case.
  const double at_random = 1 - std::pow(1 - slab, std::max(1.0, outputs / side));
  const double touched =
      side < 128 && !promotes ? at_random * (1 - 0.14 * std::min(1.0, (1 - at_random) / 0.2)) : at_random;
  const double panels = std::ceil(m / tokens), tiles = panels * std::ceil(out / outputs);
  const Bytes bytes = bytes_of(p);
  const double reads = tiles * slabs * touched * tokens * row + panels * bytes.stored;
  // The last round of wide tiles takes as long with half of the multiprocessors; that of 8 rounds is in the
  // constant.
  const double rounds = tiles / device.multiprocessors;
  const double last_round = narrow || rounds < 1 ? 1 : std::max(1.0, std::ceil(rounds) / rounds / 1.03);
  const double l2 =
      last_round * reads / ((own ? 0.87 : 1.0) * device.l2_share * kWgmmaL2BytesPerClock * device.clocks());
  const double product = useful_flops(p, panels * tokens) / (kVendorShare * 0.95 * dense_peak(p, device));
  const double each = slabs * touched * std::ceil(tiles / ((narrow ? 2.0 : 1.0) * device.multiprocessors));
  // Few tiles leave multiprocessors idle, and each is bound by its own port: what a step copies, X and the
  // parts.
  const double turns = std::ceil(tiles / device.multiprocessors);
  const double copied = (tokens + outputs * std::min(1.0, density / touched)) * row;
  const double port =
      slabs * touched * turns * copied / (kPortBytesPerClock[narrow && turns > 1] * device.clock_hz);
  // A step's latency, with each line's test and wait; promoted sums pass through registers besides.
  const double lines = std::ceil(outputs / side);
  const double latency = (200 + (narrow ? 300 : 100) * lines) * (promotes ? 1.7 : 1.0) * (own ? 0.5 : 1.0);
  const double steps = each * (latency + 256.0 * (row / 128) * density / touched) / device.clock_hz;
  // Stores of 16-bit outputs hide to some part behind the next tile's products, those that wait in registers
  // (kStoresLate) to a larger one, but not behind what is read from memory; of others and of narrow tiles,
  // behind nothing.
  const double stores = memory_seconds(m * out * out_size, device),
               loads = memory_seconds(bytes.stored + m * depth * size, device);
  const bool wide_halves = (size == 2 || (f8 && !promotes)) && out_size == 2 && !narrow;
  const double behind = !wide_halves ? 1.1 : size == 2 && side >= 64 ? 0.45 : 0.6;
  // Measured beside this model on an H200: slices of 32 lose to their many short wgmma where many blocks are
  // stored, 16-bit ones less since X is in registers, tiles whose tokens are mostly absent take twice their
  // bytes' time, and promoted sums add up in registers.
  const bool short_slice = std::min(side, gathered) == 32;
  const double of_16_bits =
      own ? (dx ? 1.07 : 1.01) : (dx ? 1.03 : 1) * (0.86 - 0.18 * density + 0.7 * density * density);
  const double short_slices = !short_slice ? 1
                              : size == 2  ? (narrow ? 0.8 : 1) * of_16_bits
                                           : 1 + 0.45 * std::max(0.0, density - 0.15);
  const double empty_tiles = p.m <= 64 ? 2 : 1, promoted = promotes ? 1.07 : 1;
  // Outputs on M of wgmma: fewer steps wait, and each for less.
  const double turned = wide_halves && side >= 64 ? 0.95 : 1;
  // Two tiles of half a line each read the same X side by side.
  const double half_lines = narrow && side == 128 ? 0.87 : 1;
  // The first copies and the last stores of a thread block.
  const double ends = narrow ? 0.9 : 1.6;
  const double transposing =
      dx && p.dtype == DType::f32 ? kLaunchUs + us(2 * memory_seconds(bytes.stored, device)) : 0;
  const double products =
      short_slices * empty_tiles * promoted * turned * half_lines * std::max({l2, product, steps, port});
  // Narrow tiles read X for half as many outputs, which memory sees where it is what limits.
  const double memory = 1.1 * stores + (narrow ? 1.05 : 1) * empty_tiles * loads;
  return kLaunchUs + ends + transposing + us(std::max(memory, behind * stores + products));
}

// The units are written once, from blocks read once, and read while L2 has them.
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

// X by every 512 outputs and values by every 64 tokens, from L2; or, of many blocks, mma.sync and what feeds
// it.
double predict_panel_us(const Problem& p, const plan::Machine& machine) {
  const Device device(machine);
  const bool dx = p.direction == Direction::dx;
  const double out = static_cast<double>(dx ? p.cols : p.rows),
               depth = static_cast<double>(dx ? p.rows : p.cols);
  const double panels = std::ceil(static_cast<double>(p.m) / mma_dds::kTileTokens),
               tiles = panels * std::ceil(out / mma_dds::kTileOutputs);
  // Of a whole tile: the last of a row of tiles may have fewer.
  const double slabs = std::ceil(depth / mma_dds::kSlab),
               blocks = static_cast<double>(p.blocks) * std::min(1.0, mma_dds::kTileOutputs / out);
  const double rounds = std::ceil(tiles / device.multiprocessors);
  const double read =
      tiles * 2 * (slabs * mma_dds::kTileTokens * mma_dds::kSlab + blocks * mma_dds::kSide * mma_dds::kSide);
  const double l2 = read / (device.l2_share * kWgmmaL2BytesPerClock * device.clocks());
  const double steps = rounds * (slabs * kPanelStepClocks + blocks * kPanelBlockClocks) / device.clock_hz;
  const Bytes bytes = bytes_of(p);
  return 2 * kLaunchUs + us(std::max({l2, steps, memory_seconds(bytes.stored + bytes.tokens, device)}));
}

double predict_merged_panel_us(const Problem& p, const plan::Machine& machine) {
  const Problem units = merged(p, Merging::kMmaLeast);
  return predict_merging_us(p, units, machine) + predict_panel_us(units, machine);
}

// Tiles step through slabs of 32 of the reduction; six 16-bit products for each of fp32.
double predict_split_us(const Problem& p, const plan::Machine& machine, bool narrow) {
  const Device device(machine);
  if (p.direction == Direction::dw)  // and behind it a launch that looks for marks
    return kLaunchUs + predict_wgmma_dw_us(p, device, wgmma_sdd::kStepSplit, false);
  const bool dx = p.direction == Direction::dx;
  const double out = static_cast<double>(dx ? p.cols : p.rows),
               depth = static_cast<double>(dx ? p.rows : p.cols);
  const int side = dx ? p.block.cols : p.block.rows, gathered = dx ? p.block.rows : p.block.cols;
  const wgmma_dds::TileShape& tile = narrow ? wgmma_dds::kNarrowSplitTile : wgmma_dds::kSplitTile;
  const double outputs = tile.outputs;
  const double m = static_cast<double>(p.m), panels = std::ceil(m / tile.tokens),
               groups = std::ceil(out / tile.outputs), slabs = std::ceil(depth / 32);
  const double grid = std::max(1.0, std::ceil(out / side) * std::ceil(depth / gathered));
  const double density = static_cast<double>(p.blocks) / grid,
               touched = 1 - std::pow(1 - density, std::max(1.0, outputs / side));
  const Bytes bytes = bytes_of(p);
  const double reads = panels * (groups * slabs * touched * 16384 + 1.5 * bytes.stored);
  const double l2 = reads / (device.l2_share * kWgmmaL2BytesPerClock * device.clocks());
  // In a slab both warpgroups multiply in turn, 12 products of 64 x outputs x 16 each where all lines store
  // it; one alone takes half of that and its latency: loads, splitting X, adding up.
  const double multiply = 2 * 12 * outputs / 2 * density / touched;
  const double step =
      std::max(multiply, multiply / 2 + 550) / (0.9 * device.clock_hz);  // the clock gives way under load
  const double steps = slabs * touched * std::ceil(panels * groups / device.multiprocessors) * step;
  const double stores = memory_seconds(m * out * 4, device),
               loads = memory_seconds(bytes.stored + m * depth * 4, device);
  const double splitting = kLaunchUs + 2 + us(2.5 * memory_seconds(bytes.stored, device));
  // An H200 took so many times what these steps come to: wgmma of 32 and 64 outputs leave less time to split
  // X beside them.
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
  // dW of few features leaves cuBLAS with few tiles, which it does not cut along the tokens: 768 x 768 at two
  // thirds of its rate.
  const double tiles = std::max(1.0, static_cast<double>(p.rows) * static_cast<double>(p.cols) / (128 * 128));
  const double filled =
      p.direction == Direction::dw ? std::pow(std::min(1.0, 2 * tiles / device.multiprocessors), 0.75) : 1;
  const double product = std::max(flops / (share * filled * dense_peak(p, device)),
                                  memory_seconds(bytes.dense + bytes.tokens, device));
  // dW's product is gathered while L2 still has it: 4 to 10 us over cuBLAS at 4096 x 4096 on an H200.
  const double moved = p.direction == Direction::dw ? bytes.stored : bytes.stored + bytes.dense;
  double total = 2 * kLaunchUs + (p.direction == Direction::dw ? kGatherUs : 0) +
                 us(product + memory_seconds(moved, device));
  const double written = static_cast<double>(p.m) * static_cast<double>(p.rows) * written_size(p);
  if (p.activation != Activation::none || p.residual)  // a pass over what the product wrote
    total += kLaunchUs + us(memory_seconds((p.residual ? 3.0 : 2.0) * written, device));
  // f32 of 8-bit operands: one for the bias, and one each for factors of tokens and of outputs, which the
  // plan is not told of.
  if (is_scaled(p.dtype) && p.out == DType::f32)
    total += (p.bias ? 3 : 2) * (kLaunchUs + us(memory_seconds(2 * written, device)));
  return total;
}

}  // namespace sparseloom::kernels::cuda
