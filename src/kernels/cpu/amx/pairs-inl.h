// bf16 pairs: between rows of 16-bit elements and the cells of tiles. Included inside a region, after rows-inl.h.

// Cells of two rows of sums, bias added. The instruction's flush of denormals takes nothing: the tile products flush them anyway.
[[gnu::always_inline]] inline Vec pair_up(Vec low, Vec high, float low_bias, float high_bias) {
  return interleave_bf16(_mm512_add_ps(low, _mm512_set1_ps(low_bias)), _mm512_add_ps(high, _mm512_set1_ps(high_bias)));
}
// Two tiles of cells from up to 32 rows x 32 columns of a matrix: cell (i, j) of the first is rows 2 i and 2 i + 1 at column j, of
// the second at column 16 + j. Zero beyond the edges, where nothing is read. Both at once, so that each cache line is fetched
// once: rows a page apart evict one another.
inline void pair_rows(const std::uint16_t* in, std::int64_t stride, std::int64_t rows, std::int64_t columns, float* first,
                      float* second) {
  const __m512i left = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), right = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  constexpr std::int64_t kAhead = 64;  // elements: the next 32 columns but one, at the next call but one
  const __mmask32 mask = first32(columns);
  for (std::int64_t i = 0; i < kLanes; ++i) {
    const std::uint16_t* upper = in + 2 * i * stride;
    if (2 * i < rows) __builtin_prefetch(upper + kAhead);
    if (2 * i + 1 < rows) __builtin_prefetch(upper + stride + kAhead);
    const __m512i a = 2 * i < rows ? _mm512_maskz_loadu_epi16(mask, upper) : _mm512_setzero_si512();
    const __m512i b = 2 * i + 1 < rows ? _mm512_maskz_loadu_epi16(mask, upper + stride) : _mm512_setzero_si512();
    const __m512i low = _mm512_unpacklo_epi16(a, b), high = _mm512_unpackhi_epi16(a, b);  // per quarter: columns 0-3, 4-7
    store(first + i * kLanes, _mm512_castsi512_ps(_mm512_permutex2var_epi64(low, left, high)));
    store(second + i * kLanes, _mm512_castsi512_ps(_mm512_permutex2var_epi64(low, right, high)));
  }
}

// Sixteen rows of sixteen cells turned; the first `rows` results, `cells` cells of each.
[[gnu::always_inline]] inline void turn_cells(const float* in, std::int64_t rows, std::int64_t cells, float* out,
                                              std::int64_t stride) {
  Vec square[kLanes];
  unroll<kLanes>(SPARSELOOM_UNROLLED(i) { square[i.value] = load(in + i.value * kLanes); });
  transpose(square);
  const __mmask16 mask = first16(cells);
  unroll<kLanes>(SPARSELOOM_UNROLLED(i) {
    if (i.value < rows) _mm512_mask_storeu_ps(out + i.value * stride, mask, square[i.value]);
  });
}

// 128 columns of 32 rows together: see pack_columns_of in generic/pack_columns-inl.h.
void pack_tiles(const cpu::TilePack& p) {
  constexpr std::int64_t kTogether = 4;  // pairs of groups
  alignas(64) float scratch[2][cpu::kTileCells];
  for (std::int64_t from = p.begin; from < p.end; from += kTogether)
    for (std::int64_t tile = 0; tile < p.tiles; ++tile)
      for (std::int64_t pair = from; pair < std::min(p.end, from + kTogether); ++pair) {
        const std::int64_t group = 2 * pair, column = group * kLanes, row = tile * cpu::kTileDepth;
        const bool lone = group + 1 == p.groups;
        float* const out = p.out + (group * p.tiles + tile) * cpu::kTileCells;
        float* const next = out + p.tiles * cpu::kTileCells;
        const std::uint16_t* in = p.in + row * p.in_stride + column;
        if (!p.turned) {
          pair_rows(in, p.in_stride, p.rows - row, p.columns - column, out, lone ? scratch[1] : next);
          continue;
        }
        pair_rows(in, p.in_stride, p.rows - row, p.columns - column, scratch[0], scratch[1]);
        turn_cells(scratch[0], kLanes, kLanes, out, kLanes);
        if (!lone) turn_cells(scratch[1], kLanes, kLanes, next, kLanes);
      }
}

void transpose_blocks(const std::uint16_t* values, const std::int32_t* slot, BlockShape block, std::int64_t begin, std::int64_t end,
                      std::uint16_t* out) {
  const std::int64_t bm = block.rows, bn = block.cols;
  alignas(64) float scratch[2][cpu::kTileCells];
  for (std::int64_t i = begin; i < end; ++i) {
    const std::uint16_t* from = values + slot[i] * bm * bn;
    auto* const to = reinterpret_cast<cpu::Cell*>(out + i * bm * bn);  // rows of bm / 2 cells
    for (std::int64_t row = 0; row < bm; row += cpu::kTileDepth)
      for (std::int64_t column = 0; column < bn; column += 2 * kLanes) {
        pair_rows(from + row * bn + column, bn, bm - row, bn - column, scratch[0], scratch[1]);
        for (std::int64_t half = 0; half < 2 && column + half * kLanes < bn; ++half) {
          const std::int64_t first = column + half * kLanes;
          turn_cells(scratch[half], std::min<std::int64_t>(kLanes, bn - first), std::min<std::int64_t>(kLanes, (bm - row) / 2),
                     to + first * bm / 2 + row / 2, bm / 2);
        }
      }
  }
}
