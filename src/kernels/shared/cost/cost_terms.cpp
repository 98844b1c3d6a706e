// The terms that the rows' predictions share.
#include "kernels/shared/cost/cost_terms.h"

#include <algorithm>
#include <cmath>

#include "kernels/shared/cost/gpu_rates.h"
#include "plan/evenness.h"

namespace sparseloom::kernels::cuda {
namespace {

// An H200 streams 4.2 TB/s of its DRAM's nominal 4.8.
constexpr double kMemoryShare = 0.87;

// A tile's first copies, its stores and its start on the multiprocessor, in addition to its products.
constexpr double kTileUs = 1.3;
constexpr double kTilesAtOnce[] = {3, 3, 2, 2, 2};  // per multiprocessor, by block side
// Tokens per tile in large batches, by block side.
constexpr double kWideTokens[] = {128, 128, 256, 256, 128};

// By the length of a gathered row. Rows of 16 and 32 bytes, which 16-bit blocks of 8 and 16 gather, use at
// most half of the sectors that L2 sends.
constexpr double kNarrowGather[] = {0.45, 0.57, 1, 1, 1, 1};

int log2_of(int side) { return std::max(0, 31 - __builtin_clz(static_cast<unsigned>(side)) - 3); }

}  // namespace

Device::Device(const plan::Machine& machine) : runtime::CudaDevice(machine.cuda) {
  if (machine.gpu.memory_bytes <= 0) return;
  const plan::GpuRates expected = expected_rates(machine.cuda);
  const double clock = machine.gpu.tensor_flops / expected.tensor_flops;  // under load
  memory_bytes *= machine.gpu.memory_bytes / expected.memory_bytes;
  clock_hz *= clock;
  l2_share = machine.gpu.l2_bytes / expected.l2_bytes / clock;
}

Bytes bytes_of(const Problem& p, double out_size) {
  const double size = static_cast<double>(size_of(p.dtype)), m = static_cast<double>(p.m);
  const double rows = static_cast<double>(p.rows), cols = static_cast<double>(p.cols);
  const double stored = p.accumulate ? 8 : size;  // fp32 is read and written
  return {static_cast<double>(p.blocks) * p.block.rows * p.block.cols * stored,
          m * (rows * (out_size > 0 ? out_size : size) + cols * size),
          rows * cols * (p.accumulate ? 4 : size)};
}

double memory_seconds(double bytes, const Device& device) {
  return bytes / (kMemoryShare * device.memory_bytes);
}

double useful_flops(const Problem& p, double tokens) {
  return 2.0 * tokens * static_cast<double>(p.blocks) * p.block.rows * p.block.cols;
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

Work work_of(const Problem& p) {
  const bool dx = p.direction == Direction::dx;
  Work w{};
  w.m = static_cast<double>(p.m), w.size = static_cast<double>(size_of(p.dtype));
  w.out = static_cast<double>(dx ? p.cols : p.rows), w.depth = static_cast<double>(dx ? p.rows : p.cols);
  w.side = dx ? p.block.cols : p.block.rows, w.gathered = dx ? p.block.rows : p.block.cols;
  w.block_rows = std::max(1.0, std::ceil(w.out / w.side));
  w.block_columns = std::max(1.0, std::ceil(w.depth / w.gathered));
  const double blocks = static_cast<double>(p.blocks) / w.block_rows;
  const Facts facts = p.facts.known ? p.facts : Facts{};
  const double longest = blocks * plan::longest_over_mean(dx ? facts.longest_column : facts.longest_row,
                                                          blocks, static_cast<std::size_t>(w.block_rows),
                                                          static_cast<std::int64_t>(w.block_columns));
  w.mean = blocks * w.gathered, w.longest = longest * w.gathered;
  w.density = blocks / w.block_columns, w.row_density = std::min(1.0, longest / w.block_columns);
  w.banded = facts.banded && blocks > 2;
  const auto odd = [&](std::int64_t width) { return width * static_cast<std::int64_t>(w.size) % 16 != 0; };
  w.ragged = odd(p.rows) || odd(p.cols) || !p.aligned;
  const auto off = [&](std::int64_t width) { return width * static_cast<std::int64_t>(w.size) % 128 != 0; };
  w.off_lines = p.direction == Direction::dw ? off(p.rows) || off(p.cols) : off(dx ? p.rows : p.cols);
  return w;
}

Work merged_work(const Work& w) {
  Work units = w;
  const double down = std::max(1.0, 32 / w.side), over = std::max(1.0, 32 / w.gathered);
  const auto some = [&](double density) { return 1 - std::pow(1 - std::min(1.0, density), down * over); };
  units.side = std::max(32.0, w.side), units.gathered = std::max(32.0, w.gathered);
  units.block_rows = std::ceil(w.out / units.side), units.block_columns = std::ceil(w.depth / units.gathered);
  units.density = w.banded
                      ? std::min(1.0, w.density + (down - 1) / w.block_rows + (over - 1) / w.block_columns)
                      : some(w.density);
  units.row_density = w.banded ? units.density : some(w.row_density);
  return units;
}

// Neighbouring rows of a band are shifted by a column or so each.
double touched(const Work& w, double density, double rows) {
  const double at_random = 1 - std::pow(1 - std::min(1.0, density), std::max(1.0, rows));
  return w.banded ? std::min(at_random, std::min(1.0, density) + (rows - 1) / w.block_rows) : at_random;
}

double chain_us(double nanoseconds, const Device& device) {
  return nanoseconds * 1e-3 * 1.98e9 / device.clock_hz;
}

double rate_us(double work, double tera, const Device& device) {
  return us(work / (tera * 1e12)) * 132 * 1.98e9 / device.clocks();
}

double stream_us(const Problem& p, const Device& device) {
  const Bytes bytes = bytes_of(p);
  return us(memory_seconds(bytes.stored + bytes.tokens, device));
}

double tiled_us(const Problem& p, const Device& device, const FlopsBySide& rates, double scale, int widest,
                double out_size) {
  const int side = p.direction == Direction::dx ? p.block.cols : p.block.rows;
  const int gathered = p.direction == Direction::dx ? p.block.rows : p.block.cols;
  const double m = static_cast<double>(p.m);
  const int row_bytes = gathered * static_cast<int>(size_of(p.dtype));
  const double rate = rates[log2_of(side)] * kNarrowGather[log2_of(row_bytes / 2)] * scale * device.clocks();
  const Bytes bytes = bytes_of(p, out_size);
  const double memory = memory_seconds(bytes.stored + bytes.tokens, device);
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

}  // namespace sparseloom::kernels::cuda
