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

// Decode by the side of a block that lies along the outputs: fitted on an H200 to 16 x 4096 x 16384 and 32 x 12288 x 12288. Narrow
// strips meet every token's fragment more often.
constexpr double kDecodeUs[] = {13, 7.6, 5.2, 5.4, 5.6};
constexpr double kDecodeXUs[] = {30e-6, 17e-6, 11e-6, 11e-6, 12e-6};  // for a byte of X
constexpr double kDecodeStream[] = {0.68, 0.89, 0.81, 0.75, 0.69};    // of the memory's nominal rate

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

}  // namespace

// A tile of 256 tokens x 128 outputs reads a slab of 64 of the reduction for every line group that stores anything there; blocks
// are taken to lie at random. What is read from L2, multiplied and read from memory overlaps.
double predict_wgmma_us(const Problem& p, const runtime::CudaDevice& device) {
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
  return kLaunchUs + 1 + us(1.1 * stores + std::max({l2, product, loads, steps}));
}

double predict_mma_us(const Problem& p, const runtime::CudaDevice& device) {
  return tiled_us(p, device, kMmaDds, kMmaSdd, p.dtype == DType::f32 ? kTf32OfMma : 1);
}

double predict_ffma_us(const Problem& p, const runtime::CudaDevice& device) { return tiled_us(p, device, kFfma, kFfma, 1); }

// What a thread block does before its first block and after its last, its share of X, and the stored bytes as a stream.
double predict_decode_us(const Problem& p, const runtime::CudaDevice& device) {
  const bool dx = p.direction == Direction::dx;
  const Bytes bytes = bytes_of(p);
  const int side = log2_of(dx ? p.block.cols : p.block.rows);
  const double x = static_cast<double>(p.m * (dx ? p.rows : p.cols)) * static_cast<double>(size_of(p.dtype));
  const double stream = us(bytes.stored / (kDecodeStream[side] * device.memory_bytes));
  const double ffma =
      p.dtype == DType::f32 && !p.tf32 ? us(useful_flops(p, static_cast<double>(p.m)) / (kFfma[4] * clocks(device))) : 0;
  const double turned = dx ? 1.4 : 1;  // blocks are read across and in the transposed order
  return turned * (kDecodeUs[side] + kDecodeXUs[side] * x + std::max(stream, ffma));
}

double predict_dense_us(const Problem& p, const runtime::CudaDevice& device) {
  const Bytes bytes = bytes_of(p);
  const double flops = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.rows) * static_cast<double>(p.cols);
  const double product =
      std::max(flops / (kVendorShare * dense_peak(p, device)), memory_seconds(bytes.dense + bytes.tokens, device));
  return 2 * kLaunchUs + us(product + memory_seconds(bytes.stored + bytes.dense, device));
}

}  // namespace sparseloom::kernels::cuda
