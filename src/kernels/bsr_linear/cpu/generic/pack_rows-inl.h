// Packs panels, and columns of dw, from rows at arbitrary addresses: the pixels of convolutions. Included
// inside an instruction set's region, after pack-inl.h and pack_columns-inl.h.

// Like pack_tokens. The rows of the next vector are prefetched: if they are a multiple of 2 KB apart, L1 has
// room for little more than those of two vectors, and each tap finds its pixels in L2.
template <class T>
void pack_rows_of(const cpu::RowPack& p) {
  const std::int64_t row = std::int64_t{p.vectors} * kLanes;
  for (int v = 0; v < p.vectors; ++v) {
    const void* const* const rows = p.rows + v * kLanes;
    if (const void* const* const next = v + 1 < p.vectors ? rows + kLanes : p.next)
      for (std::int64_t line = 0; line < p.depth * static_cast<std::int64_t>(sizeof(T)); line += 64)
        unroll<kLanes>(
            SPARSELOOM_UNROLLED(i) { __builtin_prefetch(static_cast<const char*>(next[i.value]) + line); });
    for (std::int64_t k = 0; k < p.steps; k += kLanes) {
      Vec square[kLanes];
      unroll<kLanes>(SPARSELOOM_UNROLLED(i) {
        square[i.value] = row_cells(static_cast<const T*>(rows[i.value]), k, p.depth);
      });
      store_square(square, static_cast<int>(std::min<std::int64_t>(kLanes, p.steps - k)), row,
                   p.panel + k * row + v * kLanes);
    }
  }
}

void pack_rows(DType dtype, const cpu::RowPack& p) {
  if constexpr (kDepthStep == 2)
    return pack_rows_of<cpu::Bf16>(p);
  else
    switch (dtype) {
      case DType::f16: return pack_rows_of<cpu::F16>(p);
      case DType::bf16: return pack_rows_of<cpu::Bf16>(p);
      default: return pack_rows_of<float>(p);
    }
}

// Like pack_columns_of, for a few columns of one block.
template <class T>
void pack_column_rows_of(const cpu::ColumnRowPack& p) {
  for (std::int64_t step = 0; step < p.steps; ++step) {
    const T* const row = static_cast<const T*>(p.rows[step * kDepthStep]);
    const T* const next = static_cast<const T*>(p.rows[step * kDepthStep + kDepthStep - 1]);
    for (std::int64_t column = p.begin; column < p.end; column += 8) {
      const std::int64_t at = column - p.begin;
      float* const out = p.out + at / p.piece * p.piece_cells + step * p.piece + at % p.piece;
      if (column + 8 <= p.columns)
        column_cells(row + column, next + column, out);
      else
        column_cells_first(row + column, next + column, p.columns - column, out);
    }
  }
}

void pack_column_rows(DType dtype, const cpu::ColumnRowPack& p) {
  if constexpr (kDepthStep == 2)
    return pack_column_rows_of<cpu::Bf16>(p);
  else
    switch (dtype) {
      case DType::f16: return pack_column_rows_of<cpu::F16>(p);
      case DType::bf16: return pack_column_rows_of<cpu::Bf16>(p);
      default: return pack_column_rows_of<float>(p);
    }
}
