// Everything of TileOps over a tile vocabulary. Included inside a region, after that vocabulary; amx/product.cpp has the
// machine's, a test the emulated one.

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/cpu/generic/unroll-inl.h"
#include "kernels/cpu/avx2/simd.h"
#include "kernels/cpu/avx512/vector.h"
#include "kernels/cpu/generic/activation-inl.h"
#include "kernels/cpu/amx/pairs-inl.h"
#include "kernels/cpu/amx/strip-inl.h"
#include "kernels/cpu/amx/outer-inl.h"
// clang-format on

void begin(const cpu::TileShape& shape) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    const bool a = tile >= kFirstA && tile < kFirstA + shape.a_count, b = tile >= kFirstA + shape.a_count;
    config.rows[tile] = static_cast<std::uint8_t>(b ? shape.depth / 2 : shape.side);
    config.row_bytes[tile] = static_cast<std::uint16_t>(a ? shape.depth * 2 : shape.columns * 4);
  }
  tiles_begin(config);
}
void end() { tiles_end(); }

// The tiles' own rate, of products that need no load.
std::int64_t spin(std::int64_t rounds) {
  begin({cpu::kTileSide, cpu::kTileDepth, cpu::kTileSide, 2});
  unroll<8>(SPARSELOOM_UNROLLED(i) { tile_zero<i.value>(); });
  for (std::int64_t i = 0; i < rounds; ++i)
    unroll<4>(SPARSELOOM_UNROLLED(sum) { tile_dot<sum.value, kFirstA + sum.value / 2, kFirstA + 2 + sum.value % 2>(); });
  end();
  return rounds * 4 * 2 * cpu::kTileSide * cpu::kTileSide * cpu::kTileDepth;
}

constexpr cpu::TileOps kOps = {begin, end, choose_strip, choose_outer, pack_tiles, transpose_blocks, spin};
