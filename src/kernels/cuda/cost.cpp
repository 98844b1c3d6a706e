#include "kernels/cuda/cost.h"

#include <algorithm>
#include <cmath>

namespace sparseloom::kernels::cuda {
namespace {

// First byte, last byte and the launch itself; the same for every kernel, so it only keeps tiny problems from looking free.
constexpr double kLaunchUs = 3;
// Of the peak, what cuBLAS reached on an H200 in every dtype: 796 of 1070 TF/s bf16, 400 of 535 TF32, 49 of 67 fp32.
constexpr double kVendorShare = 0.74;
// Of the memory's nominal 4.8 TB/s, an H200 streams 4.2.
constexpr double kMemoryShare = 0.87;
// A tile's first copies, its stores and its turn on the multiprocessor, beside its products.
constexpr double kTileUs = 1.3;
constexpr double kTilesAtOnce[] = {3, 3, 2, 2, 2};  // of a multiprocessor, by side
constexpr double kWideTokens[] = {128, 128, 256, 256, 128};

// Useful flops per clock and multiprocessor that the kernels reach on long reductions, by the side of a block across the reduction
// (8, 16, 32, 64, 128): fitted to the cells of bench/results/h200/gpu.json (a multiprocessor at 1.98 GHz of 132; 1000 is 261 TF/s).
constexpr double kMmaDds[] = {150, 545, 800, 1170, 1510};
constexpr double kMmaSdd[] = {120, 375, 840, 1040, 1330};
constexpr double kTf32OfMma = 0.43;
constexpr double kFfma[] = {60, 130, 165, 175, 175};
// Rows of 16 and 32 bytes, which is what 16-bit blocks of 8 and 16 gather, use half and less of the sectors L2 sends.
constexpr double kNarrowGather[] = {0.45, 0.57, 1, 1, 1, 1};

// L2 to the multiprocessors for slabs of 128-byte rows: 9.3 TB/s on an H200.
constexpr double kWgmmaL2BytesPerClock = 36;

// dW walks down the tokens in step, so that many multiprocessors ask L2 for the same rows of X at about the same time: 10.5 TB/s
// on an H200 for rows of 128 bytes, 9.4 TB/s for 64.
constexpr double kWgmmaDwBytesPerClock[] = {36, 40};

// Staged decode by the side of a block along the outputs, 8 and 16: fitted on an H200 to 16 x 4096 x 16384 and 32 x 12288 x 12288.
constexpr double kStagedUs[] = {13, 7.6};
constexpr double kStagedXUs[] = {30e-6, 17e-6};   // for a byte of X
constexpr double kStagedStream[] = {0.68, 0.89};  // of the memory's nominal rate

int log2_of(int side) { return std::max(0, 31 - __builtin_clz(static_cast<unsigned>(side)) - 3); }

double clocks(const runtime::CudaDevice& device) { return device.multiprocessors * device.clock_hz; }

double us(double seconds) { return 1e6 * seconds; }

struct Bytes {
  double stored, tokens, dense;
};

Bytes bytes_of(const Problem& p) {
  const double size = static_cast<double>(size_of(p.dtype)), m = static_cast<double>(p.m);
  const double rows = static_cast<double>(p.rows), cols = static_cast<double>(p.cols);
  return {static_cast<double>(p.blocks) * p.block.rows * p.block.cols * size, m * (rows + cols) * size, rows * cols * size};
}

double memory_seconds(double bytes, const runtime::CudaDevice& device) { return bytes / (kMemoryShare * device.memory_bytes); }

double useful_flops(const Problem& p, double tokens) {
  return 2.0 * tokens * static_cast<double>(p.blocks) * p.block.rows * p.block.cols;
}

double tiled_us(const Problem& p, const runtime::CudaDevice& device, const double (&dds)[5], const double (&sdd)[5], double scale) {
  const bool dw = p.direction == Direction::dw;
  const int side = p.direction == Direction::dx ? p.block.cols : p.block.rows;
  const int gathered = p.direction == Direction::dx ? p.block.rows : p.block.cols;
  const double m = static_cast<double>(p.m);
  const int row_bytes = gathered * static_cast<int>(size_of(p.dtype));
  const double rate = (dw ? sdd : dds)[log2_of(side)] * kNarrowGather[log2_of(row_bytes / 2)] * scale * clocks(device);
  const Bytes bytes = bytes_of(p);
  const double memory = memory_seconds(bytes.stored + bytes.tokens, device);
  if (dw) return kLaunchUs + us(0.5 * memory + useful_flops(p, m) / rate);
  // Few tokens leave multiprocessors with one tile or none, whose latency nothing hides.
  const double width = static_cast<double>(p.direction == Direction::forward ? p.rows : p.cols), lines = std::ceil(width / side);
  const double wide = kWideTokens[log2_of(side)], places = kTilesAtOnce[log2_of(side)] * device.multiprocessors;
  const double tokens = std::ceil(m / wide) * lines >= places ? wide : 64;
  const double tiles = std::ceil(m / tokens) * lines;
  const double few = tokens < wide ? 0.75 * std::min(1.0, tiles / device.multiprocessors) : 1;
  return kLaunchUs + tiles * kTileUs / places + us(memory + useful_flops(p, std::ceil(m / tokens) * tokens) / (rate * few));
}

double dense_peak(const Problem& p, const runtime::CudaDevice& device) {
  // Flops per clock and multiprocessor: 16-bit, TF32 and FFMA on sm_80 and sm_90; consumer parts have less and only rank alike.
  const double tensor = device.sm >= 90 ? 8192 : 4096;
  return (p.dtype != DType::f32 ? tensor : p.tf32 ? tensor / 2 : 512) / 2 * clocks(device);
}

// sm90_wgmma_sdd: thread block after thread block takes an item, some blocks of one block row. 64 tokens of it are read from L2 and
// multiplied at the same time; all thread blocks move down the tokens together, so that memory is read once a round. Rows are taken
// to be of one length.
double predict_wgmma_dw_us(const Problem& p, const runtime::CudaDevice& device) {
  constexpr double kStrips[] = {13, 8, 4};  // of 64 columns, that an item may hold, by the rows of a block: 32, 64, 128
  constexpr double kStripClocks[] = {4 * 24, 4 * 32, 4 * 64};
  constexpr double kUnderLoad = 1.12;  // the tensor cores' clock gives way by so much in a burst
  const int rows_log2 = log2_of(p.block.rows) - 2;
  const double blocks = static_cast<double>(p.blocks), m = static_cast<double>(p.m);
  if (p.blocks == 0) return kLaunchUs;
  const double lines = std::min(blocks, std::ceil(static_cast<double>(p.rows) / p.block.rows));
  const double most_blocks = std::floor(kStrips[rows_log2] * 64 / p.block.cols);
  const double items = lines * std::ceil(blocks / lines / most_blocks);
  // Clusters of four do not fill the last multiprocessors of every group. The tokens of the last items are cut in two or four.
  const double places = std::max(4.0, 4 * std::floor(0.975 * device.multiprocessors / 4)), steps = std::ceil(m / 64);
  const double whole = std::floor(items / places), rest = items - whole * places;
  const double pieces = rest * 4 <= places && steps >= 16 ? 4 : rest * 2 <= places && steps >= 8 ? 2 : 1;
  const double rounds = whole + (rest > 0 ? 1 / pieces : 0);

  const double columns = blocks / items * p.block.cols, strips = std::ceil(columns / 64);
  const double read = 64 * 2 * (columns + p.block.rows) / kWgmmaDwBytesPerClock[p.block.cols == 32 ? 0 : 1];
  // A warpgroup's products, and 450 clocks from barrier to barrier that only the other one's hide.
  const double strip = kUnderLoad * kStripClocks[rows_log2],
               multiply = std::max(strips * strip, std::ceil(strips / 2) * strip + 450);
  const double walk = rounds * steps * std::max(read, multiply) / device.clock_hz;
  const Bytes bytes = bytes_of(p);
  const double memory = memory_seconds(std::max(1.0, rounds) * bytes.tokens + bytes.stored, device);
  // Finding the item, the first copies, adding up pieces, the last stores.
  return kLaunchUs + 4 + us(std::max(walk, memory));
}

}  // namespace

// A tile of 256 tokens x 128 outputs reads a slab of 64 of the reduction for every line group that stores anything there; blocks
// are taken to lie at random. What is read from L2, multiplied and read from memory overlaps.
double predict_wgmma_us(const Problem& p, const runtime::CudaDevice& device) {
  if (p.direction == Direction::dw) return predict_wgmma_dw_us(p, device);
  const bool dx = p.direction == Direction::dx;
  const double out = static_cast<double>(dx ? p.cols : p.rows), depth = static_cast<double>(dx ? p.rows : p.cols);
  const int side = dx ? p.block.cols : p.block.rows, gathered = dx ? p.block.rows : p.block.cols;
  const double m = static_cast<double>(p.m), groups = std::ceil(out / 128), slabs = std::ceil(depth / 64);
  const double grid = std::max(1.0, std::ceil(out / side) * std::ceil(depth / gathered));
  const double density = static_cast<double>(p.blocks) / grid;
  const double slab = gathered == 32 ? 1 - (1 - density) * (1 - density) : density;
  const double touched = 1 - std::pow(1 - slab, 128.0 / side);
  // Few tokens: tiles of 128 x 64, whose slabs serve half as many outputs.
  const bool narrow = std::ceil(m / 256) * groups < device.multiprocessors;
  const double panels = std::ceil(m / (narrow ? 128 : 256)), tiles = panels * groups * (narrow ? 2 : 1);
  const Bytes bytes = bytes_of(p);
  const double reads = tiles * slabs * touched * (narrow ? 16384 : 32768) + panels * bytes.stored;
  const double l2 = reads / (kWgmmaL2BytesPerClock * clocks(device));
  const double product = useful_flops(p, panels * (narrow ? 128 : 256)) / (kVendorShare * 0.95 * dense_peak(p, device));
  const double each = slabs * touched * std::ceil(tiles / ((narrow ? 2.0 : 1.0) * device.multiprocessors));
  const double steps = each * ((narrow ? 250 : 300) + 256.0 * density / touched) / device.clock_hz;
  // Stores hide behind nothing: the next tile's copies wait for the staging they leave from.
  const double size = static_cast<double>(size_of(p.dtype));
  const double stores = memory_seconds(m * out * size, device), loads = memory_seconds(bytes.stored + m * depth * size, device);
  // Measured beside this model (bench/results/h200): slices of 32 lose to their many short wgmma where many blocks are stored, and
  // tiles whose tokens are mostly absent take twice their bytes' time.
  const double short_slices = std::min(side, gathered) == 32 ? 1 + 0.45 * std::max(0.0, density - 0.15) : 1;
  const double empty_tiles = p.m <= 64 ? 2 : 1;
  return kLaunchUs + 1 + us(1.1 * stores + short_slices * empty_tiles * std::max({l2, product, loads, steps}));
}

double predict_mma_us(const Problem& p, const runtime::CudaDevice& device) {
  return tiled_us(p, device, kMmaDds, kMmaSdd, p.dtype == DType::f32 ? kTf32OfMma : 1);
}

double predict_ffma_us(const Problem& p, const runtime::CudaDevice& device) { return tiled_us(p, device, kFfma, kFfma, 1); }

double predict_decode_us(const Problem& p, const runtime::CudaDevice& device) {
  const Bytes bytes = bytes_of(p);
  const int side = p.direction == Direction::dx ? p.block.cols : p.block.rows;
  // Of the memory's rate: blocks of 32 and more; narrower lines spend their time on the tokens' fragments.
  const double share = side >= 32 ? 0.9 : side == 16 ? (p.m <= 16 ? 0.42 : 0.32) : 0.1;
  const double ffma =
      p.dtype == DType::f32 && !p.tf32 ? useful_flops(p, static_cast<double>(p.m)) / (kFfma[4] * clocks(device)) : 0;
  const double few = p.direction == Direction::dx ? 1.3 : 1;
  return kLaunchUs + 1.5 + few * us(std::max(memory_seconds(bytes.stored / share + bytes.tokens, device), ffma));
}

// What a thread block does before its first block and after its last, its share of X, and the stored bytes as a stream.
double predict_decode_staged_us(const Problem& p, const runtime::CudaDevice& device) {
  const int side = std::min(log2_of(p.block.rows), 1);
  const double x = static_cast<double>(p.m * p.cols) * static_cast<double>(size_of(p.dtype));
  return kStagedUs[side] + kStagedXUs[side] * x + us(bytes_of(p).stored / (kStagedStream[side] * device.memory_bytes));
}

double predict_dense_us(const Problem& p, const runtime::CudaDevice& device) {
  const Bytes bytes = bytes_of(p);
  const double flops = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.rows) * static_cast<double>(p.cols);
  const double product =
      std::max(flops / (kVendorShare * dense_peak(p, device)), memory_seconds(bytes.dense + bytes.tokens, device));
  return 2 * kLaunchUs + us(product + memory_seconds(bytes.stored + bytes.dense, device));
}

}  // namespace sparseloom::kernels::cuda
