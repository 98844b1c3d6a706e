// Converts between rows of bf16 and the tiles' cells of bf16 pairs. Included inside a region, after
// rows-inl.h and avx512/pairs-inl.h.

// The cells of two rows of sums with the bias added. The instruction flushes denormals, which loses nothing,
// since the tile products flush them anyway.
[[gnu::always_inline]] inline Vec pair_up(Vec low, Vec high, float low_bias, float high_bias) {
  return interleave_bf16(_mm512_add_ps(low, _mm512_set1_ps(low_bias)),
                         _mm512_add_ps(high, _mm512_set1_ps(high_bias)));
}

// Packs 128 columns of 32 rows together, for the reason in pack_columns_of in generic/pack_columns-inl.h.
void pack_tiles(const cpu::TilePack& p) {
  constexpr std::int64_t kTogether = 4;  // pairs of groups
  constexpr std::int64_t kAhead = 64;    // elements, to prefetch for the next call but one
  alignas(64) float scratch[2][cpu::kTileCells];
  for (std::int64_t from = p.begin; from < p.end; from += kTogether)
    for (std::int64_t tile = 0; tile < p.tiles; ++tile)
      for (std::int64_t pair = from; pair < std::min(p.end, from + kTogether); ++pair) {
        const std::int64_t group = 2 * pair, column = group * kLanes, row = tile * cpu::kTileDepth;
        const bool lone = group + 1 == p.groups;
        float* const out = p.out + (group * p.tiles + tile) * cpu::kTileCells;
        float* const next = out + p.tiles * cpu::kTileCells;
        const std::uint16_t* in = p.in + row * p.in_stride + column;
        if (!p.transposed) {
          pair_rows(in, in + kAhead, p.in_stride, p.rows - row, p.columns - column, out,
                    lone ? scratch[1] : next);
          continue;
        }
        pair_rows(in, in + kAhead, p.in_stride, p.rows - row, p.columns - column, scratch[0], scratch[1]);
        turn_cells(scratch[0], kLanes, kLanes, out, kLanes);
        if (!lone) turn_cells(scratch[1], kLanes, kLanes, next, kLanes);
      }
}
