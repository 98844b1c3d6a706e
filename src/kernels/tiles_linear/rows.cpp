#include "kernels/tiles_linear/rows.h"

#include <algorithm>
#include <cmath>

namespace sparseloom::kernels {

TilesCounts counts_of(const LinearProblem& p) {
  const std::int64_t parts = (p.shape & 1) + 1, side = parts * 64, halves = (p.shape >> 1) * parts * parts;
  const auto tiles = [&](std::int64_t size) { return (size + side - 1) / side * parts; };
  return {p.stored / 4096 - halves / 2, halves, tiles(p.rows) * tiles(p.cols)};
}

#ifdef SPARSELOOM_HAVE_CUDA

std::span<const Row<TilesLinear>> tiles_cuda_rows() {
  static const Row<TilesLinear> rows[] = {cuda::tiles_rows::sm90_decode(), cuda::tiles_rows::sm90_wgmma(),
                                          cuda::tiles_rows::sm80_mma()};
  return rows;
}

namespace cuda::tiles_rows {

Refusal refuse(const LinearProblem& p) {
  if (p.direction != Direction::forward)
    return {"supports forward only, the direction is {}", name_of(p.direction)};
  if (p.dtype != DType::bf16 && p.dtype != DType::f16)
    return {"multiplies bf16 and f16 only, the dtype is {}", name_of(p.dtype)};
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "has nothing to multiply: a size is 0";
  if (!p.aligned || p.cols % 8 != 0) return "needs operands whose rows lie at multiples of 16 bytes";
  return {};
}

Refusal refuse_on_hopper(const LinearProblem& p, const plan::Machine& machine) {
  if (const Refusal why = refuse(p)) return why;
  if (machine.cuda.sm != 90)
    return {"needs compute capability 9.0, the device has {}.{}", machine.cuda.sm / 10, machine.cuda.sm % 10};
  return {};
}

double bytes_of(const LinearProblem& p) {
  const double m = static_cast<double>(p.m), rows = static_cast<double>(p.rows),
               cols = static_cast<double>(p.cols);
  return 2.0 * static_cast<double>(p.stored) + 512 * static_cast<double>(counts_of(p).halves) +
         2 * m * (cols + rows * (p.residual ? 2 : 1));
}

namespace {

// Fitted to 818 products of random sizes with operands in DRAM, within 13 %, and to the best of 32 in L2,
// H200 (2026-12-02): bytes a clock that L2 serves to a multiprocessor when all read, clocks of a tile's first
// copies and stores, and of shares of a reduction that meet. Where some multiprocessors have one thread block
// more than others, those are the last.
constexpr double kL2Bytes = 32.4, kTileClocks = 2260, kMeetClocks = 960, kUneven = 0.75;
constexpr double kUnitClocks = 90;  // of a stage's products beside its units

}  // namespace

double pass_us(const LinearProblem& p, const Device& device, const TilesPass& pass) {
  const auto over = [](std::int64_t size, int side) { return (size + side - 1) / side; };
  const TilesCounts counts = counts_of(p);
  const double all = static_cast<double>(counts.all), dense = static_cast<double>(counts.dense) / all,
               halves = static_cast<double>(counts.halves) / all;
  // Stages that store nothing are left out. Tiles of 128 are two units, which are stored together.
  const std::int64_t side = ((p.shape & 1) + 1) * 64, units = pass.rows / 64;
  const double apart = std::max(1.0, static_cast<double>(pass.rows) / static_cast<double>(side));
  const double kept = 1 - std::pow(1 - std::min(dense + halves, 1.0), apart);
  if (kept <= 0) return 0;
  const double stages = static_cast<double>(over(p.cols, 64)) * kept / pass.ranks;
  const std::int64_t tiles = over(p.rows, pass.rows) * over(p.m, pass.tokens), blocks = tiles * pass.ranks,
                     places = std::max(pass.places, std::int64_t{1});
  const double rounds = static_cast<double>((blocks + places - 1) / places),
               on_average = static_cast<double>(std::min(blocks, places)) /
                            std::max(static_cast<double>(device.multiprocessors), 1.0),
               a_multiprocessor =
                   on_average > 1 ? std::max(on_average, kUneven * std::ceil(on_average)) : on_average;
  const double exists =
      static_cast<double>(p.rows) / static_cast<double>(over(p.rows, pass.rows) * pass.rows);
  const double bytes =
      exists * static_cast<double>(units) * (dense * 8192 + halves * 4608) / kept + pass.tokens * 128.0;
  const double products =
      kUnitClocks + static_cast<double>(units) * (dense + halves / 2) / kept * pass.dense_clocks;
  const double stage = std::max(
      {pass.stage_clocks, bytes * a_multiprocessor / kL2Bytes, products * std::max(a_multiprocessor, 1.0)});
  const double meet = pass.ranks > 1 ? kMeetClocks : 0;
  return 1e6 * rounds * (stages * stage + kTileClocks + meet) / device.clock_hz;
}

}  // namespace cuda::tiles_rows

#else

std::span<const Row<TilesLinear>> tiles_cuda_rows() { return {}; }

#endif

}  // namespace sparseloom::kernels
