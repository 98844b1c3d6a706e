// Configures the thread's tile registers, and measures their peak. Included inside a region, after
// strip-inl.h.

void begin(const cpu::TileShape& shape) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    const bool a = tile >= kFirstA && tile < kFirstA + shape.a_count, b = tile >= kFirstA + shape.a_count;
    config.rows[tile] = static_cast<std::uint8_t>(b ? shape.depth / kPerCell : shape.side);
    config.row_bytes[tile] =
        static_cast<std::uint16_t>(a ? shape.depth * static_cast<int>(sizeof(Element)) : shape.columns * 4);
  }
  tiles_begin(config);
}
void end() { tiles_end(); }

// Multiplies tiles of spin_cells() without loads, see spin_cells.h. Returns the flops done.
std::int64_t spin(std::int64_t rounds) {
  constexpr int kDepth = cpu::kTileSide * kPerCell;
  alignas(64) static constexpr auto kCells = cpu::spin_cells<4 * cpu::kTileCells>();
  begin({cpu::kTileSide, kDepth, cpu::kTileSide, 2});
  unroll<4>(SPARSELOOM_UNROLLED(i) {
    tile_zero<i.value>();
    tile_load<kFirstA + i.value>(kCells.data() + i.value * cpu::kTileCells, 64);
  });
  for (std::int64_t i = 0; i < rounds; ++i)
    unroll<4>(SPARSELOOM_UNROLLED(sum) {
      product<sum.value, kFirstA + sum.value / 2, kFirstA + 2 + sum.value % 2>();
    });
  end();
  return rounds * 4 * 2 * cpu::kTileSide * cpu::kTileSide * kDepth;
}
