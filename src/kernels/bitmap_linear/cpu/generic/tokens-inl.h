// Forward of many tokens by AVX-512, with tokens in the lanes. Included after cells-inl.h. x lies in cells
// [columns][tokens], so that 16 rows of W read a piece of it from L1: with columns in the lanes
// (multiply_panel) four rows do, and L2 limits them. No sum over lanes is left.

// Cells of x that are multiplied at once, 16 KB, and of a row of W.
constexpr std::int64_t kTokensPiece = 4096, kTokensRow = kTokensPiece / kLanes;
// Sums of a pass.
constexpr std::int64_t kTokensTile = cpu::kBitmapRows * cpu::kBitmapTokens;

// to [cells][to_stride] = the cells of `tokens` rows of x, up to kLanes, with zeros behind them.
inline void transpose_cells(const float* x, std::int64_t x_stride, std::int64_t tokens, std::int64_t cells,
                            float* to, std::int64_t to_stride) {
  for (std::int64_t c = 0; c < cells; c += kLanes) {
    Vec rows[kLanes];
    unroll<kLanes>(SPARSELOOM_UNROLLED(t) {
      rows[t.value] = t.value < tokens ? load(x + t.value * x_stride + c) : zero();
    });
    transpose(rows);
    unroll<kLanes>(SPARSELOOM_UNROLLED(i) { store(to + (c + i.value) * to_stride, rows[i.value]); });
  }
}

// Sums of up to kBitmapRows rows for `tokens` tokens from `token` on, as out [passes][rows][kBitmapTokens],
// where a pass is kBitmapTokens tokens. W is expanded once for all of them.
template <class Way>
void rows_by_tokens(const cpu::BitmapJob& job, std::int64_t token, std::int64_t tokens, std::int64_t row,
                    std::int64_t rows, float* out) {
  using X = typename Way::X;
  constexpr std::int64_t kOfCell = static_cast<std::int64_t>(sizeof(float) / sizeof(X));  // columns
  constexpr std::int64_t kCells = Way::kColumns / kOfCell;                                // of a vector of W
  alignas(64) X panel[cpu::kBitmapRows * kTokensRow * kOfCell];
  const std::int64_t bytes = job.w.row_bytes(), vectors = vectors_of<Way::kColumns>(job.w.cols);
  const std::int64_t depth = job.x_stride / kOfCell;
  const auto lanes_of = [](std::int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; };
  const std::int64_t piece = kTokensPiece / lanes_of(std::min(tokens, cpu::kBitmapTokens)) / kCells;
  // The sums of this many pieces, 2048 cells of full passes, are added up before they join the output's: one
  // chain of all pieces of 65536 columns has 3.4 times the error of chains of 1024, with 8 pieces 1.3 times.
  constexpr std::int64_t kPieces = 32;
  alignas(64) float part[kTokensTile * cpu::kBitmapMostTokens / cpu::kBitmapTokens];
  const std::int64_t sums_of_all = (tokens + cpu::kBitmapTokens - 1) / cpu::kBitmapTokens * kTokensTile;
  const typename Way::Value* next[cpu::kBitmapRows];
  for (std::int64_t r = 0; r < rows; ++r) next[r] = values_of<typename Way::Value>(job, row + r);
  std::fill_n(out, sums_of_all, 0.0f);
  std::fill_n(part, sums_of_all, 0.0f);
  for (std::int64_t first = 0, pieces = 1; first < vectors; first += piece, ++pieces) {
    const std::int64_t here = std::min(piece, vectors - first);
    for (std::int64_t r = 0; r < rows; ++r)
      expand_row<Way>(job.w.bits + (row + r) * bytes, bytes, next[r], first, here,
                      panel + r * kTokensRow * kOfCell, nullptr);
    for (std::int64_t t = 0; t < tokens; t += cpu::kBitmapTokens) {
      const std::int64_t width = lanes_of(std::min(tokens - t, cpu::kBitmapTokens));
      const float* const b = job.cells + (token + t) * depth + first * kCells * width;
      float* const sums = part + t / cpu::kBitmapTokens * kTokensTile;
      const auto add = [&](auto outer, auto wide) __attribute__((always_inline)) {
        constexpr int kOuter = decltype(outer)::value, kVectors = decltype(wide)::value;
        std::int64_t r = 0;
        const auto add_rows = [&](auto count) __attribute__((always_inline)) {
          const auto* const a = reinterpret_cast<const float*>(panel + r * kTokensRow * kOfCell);
          add_cells<Way, Chain::of_call, decltype(count)::value, kVectors>(
              b, here * kCells, width, a, kTokensRow, sums + r * cpu::kBitmapTokens, cpu::kBitmapTokens);
          r += decltype(count)::value;
        };
        while (r + kOuter <= rows) add_rows(outer);
        while (r < rows) add_rows(std::integral_constant<int, 1>{});
      };
      using std::integral_constant;
      switch (width / kLanes) {
        case 1: add(integral_constant<int, 8>{}, integral_constant<int, 1>{}); break;
        case 2: add(integral_constant<int, 8>{}, integral_constant<int, 2>{}); break;
        case 3: add(integral_constant<int, 8>{}, integral_constant<int, 3>{}); break;
        default: add(integral_constant<int, 4>{}, integral_constant<int, 4>{}); break;
      }
    }
    if (pieces % kPieces != 0 && first + piece < vectors) continue;
    for (std::int64_t i = 0; i < sums_of_all; i += kLanes) {
      store(out + i, load(out + i) + load(part + i));
      store(part + i, zero());
    }
  }
}
