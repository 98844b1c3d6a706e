// dW on AMX tiles. Included inside a region, after strip-inl.h.

// Writes the sums of one piece to its block: as bf16 with zero in the padding (the product with padded zeros
// would be NaN if the other operand is infinite), or added to fp32 with the padding unchanged.
inline void write_piece(const float* sums, std::int64_t row, std::int64_t outputs, const cpu::TileOuter& o,
                        int piece) {
  const std::int64_t width = std::min<std::int64_t>(kLanes, o.block_cols);
  const __mmask16 valid = first16(std::min(width, o.valid_columns[piece])), all = first16(width);
  for (std::int64_t i = 0; i < outputs; ++i) {
    const __mmask16 exist = i < o.valid_rows ? valid : __mmask16{0};
    const Vec sum = _mm512_maskz_loadu_ps(exist, sums + i * row);
    if (o.accumulate) {
      float* const out = static_cast<float*>(o.out[piece]) + i * o.block_cols;
      _mm512_mask_storeu_ps(out, exist, _mm512_add_ps(_mm512_maskz_loadu_ps(exist, out), sum));
    } else {
      std::uint16_t* const out = static_cast<std::uint16_t*>(o.out[piece]) + i * o.block_cols;
      _mm256_mask_storeu_epi16(out, all, (__m256i)_mm512_cvtneps_pbh(sum));
    }
  }
}

template <int kOutputs, int kPieces>
void outer(const cpu::TileOuter& o) {
  constexpr int kUp = kOutputs == 32 ? 2 : 1, kSide = kOutputs / kUp, kFirstB = kFirstA + kUp,
                kBs = 8 - kFirstB;
  constexpr std::int64_t kRow = kPieces * kLanes;
  const std::int64_t sums_row = o.block_cols * 4;  // bytes
  const float* piece[kPieces];
  std::copy_n(o.pieces, kPieces, piece);
  // Begin with zero, or with the sums of the previous chunks.
  unroll<kUp>(SPARSELOOM_UNROLLED(u) {
    unroll<kPieces>(SPARSELOOM_UNROLLED(p) {
      constexpr int kSum = u.value * kPieces + p.value;
      if (o.first)
        tile_zero<kSum>();
      else
        tile_load<kSum>(o.sums[p.value] + u.value * kSide * o.block_cols, sums_row);
    });
  });
  // Multiply over all tokens of the chunk.
  const float* dy = o.dy;
  for (std::int64_t t = 0; t < o.tiles; ++t, dy += cpu::kTileCells) {
    unroll<kUp>(SPARSELOOM_UNROLLED(u) { tile_load<kFirstA + u.value>(dy + u.value * o.dy_group, 64); });
    unroll<kPieces>(SPARSELOOM_UNROLLED(p) {
      constexpr int kB = kFirstB + p.value % kBs;
      tile_load<kB>(piece[p.value] + t * cpu::kTileCells, 64);
      unroll<kUp>(SPARSELOOM_UNROLLED(u) { tile_dot<u.value * kPieces + p.value, kFirstA + u.value, kB>(); });
    });
  }
  // Store the sums for the next chunk or, after the last, write the result.
  alignas(64) float sums[kOutputs * kRow];
  unroll<kUp>(SPARSELOOM_UNROLLED(u) {
    unroll<kPieces>(SPARSELOOM_UNROLLED(p) {
      constexpr int kSum = u.value * kPieces + p.value;
      if (o.last)
        tile_store<kSum>(sums + u.value * kSide * kRow + p.value * kLanes, kRow * 4);
      else
        tile_store<kSum>(o.sums[p.value] + u.value * kSide * o.block_cols, sums_row);
    });
  });
  for (int p = 0; o.last && p < kPieces; ++p) write_piece(sums + p * kLanes, kRow, kOutputs, o, p);
}

template <int kOutputs>
cpu::TileOuterFunction outer_of(int pieces) {
  if constexpr (kOutputs == 32)
    return pieces == 2 ? outer<32, 2> : outer<32, 1>;
  else
    return pieces == 4   ? outer<kOutputs, 4>
           : pieces == 3 ? outer<kOutputs, 3>
           : pieces == 2 ? outer<kOutputs, 2>
                         : outer<kOutputs, 1>;
}
cpu::TileOuterFunction choose_outer(int outputs, int pieces) {
  return outputs == 32 ? outer_of<32>(pieces) : outputs == 16 ? outer_of<16>(pieces) : outer_of<8>(pieces);
}
