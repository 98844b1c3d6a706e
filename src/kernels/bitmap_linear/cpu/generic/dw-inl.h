// dW by AVX-512. Included after cells-inl.h. Besides what expand-inl.h asks of a Way:
//   kCellRows        tokens of a cell
//   cells(a, b, n)   sixteen cells of n columns, at most all, of the tokens at a and b (null: zeros)
//   keep(to, end, sums, bits)  writes the sums of 64 columns whose bits are set, and returns what lies behind
//                    them. Vectors that end before `end`, the row's, are written whole, since masked stores
//                    take longer: the row's next panel writes again what lies behind the stored ones.

static_assert(kLanes == cpu::kLineCells);

// The cells of step `step` at column `col` of a matrix [m][stride] of `cols` columns.
template <class Way>
[[gnu::always_inline]] inline Vec cells_of(const void* matrix, std::int64_t stride, std::int64_t m,
                                           std::int64_t cols, std::int64_t step, std::int64_t col) {
  using T = typename Way::Value;
  const T* const first = static_cast<const T*>(matrix) + step * Way::kCellRows * stride + col;
  const bool both = (step + 1) * Way::kCellRows <= m;
  return Way::cells(first, both ? first + stride : nullptr, std::min<std::int64_t>(kLanes, cols - col));
}

template <class Way>
void prepare_dw_x(const cpu::BitmapDwJob& job, std::int64_t begin, std::int64_t end) {
  const MatmulArgs& args = job.args;
  const std::int64_t cols = job.w.cols;
  for (std::int64_t step = begin; step < end; ++step)
    for (std::int64_t panel = 0; panel < cols; panel += cpu::kBitmapDwCols) {
      float* const to = job.x + panel * job.steps + step * cpu::kBitmapDwCols;
      for (std::int64_t c = 0; c < cpu::kBitmapDwCols; c += kLanes)
        store(to + c, panel + c < cols ? cells_of<Way>(args.b, args.b_stride, args.m, cols, step, panel + c)
                                       : zero());
    }
}

template <class Way>
void prepare_dw_dy(const cpu::BitmapDwJob& job, std::int64_t begin, std::int64_t end) {
  const MatmulArgs& args = job.args;
  const std::int64_t rows = job.w.rows;
  // Rows in the inner loop: a token's are neighbours in dY.
  for (std::int64_t step = 0; step < job.dy_stride; step += kLanes)
    for (std::int64_t row = begin; row < end; row += kLanes) {
      Vec cells[kLanes];
      unroll<kLanes>(SPARSELOOM_UNROLLED(i) {
        cells[i.value] = step + i.value < job.steps && row < rows
                             ? cells_of<Way>(args.a, args.a_stride, args.m, rows, step + i.value, row)
                             : zero();
      });
      transpose(cells);
      unroll<kLanes>(
          SPARSELOOM_UNROLLED(i) { store(job.dy + (row + i.value) * job.dy_stride + step, cells[i.value]); });
    }
}

template <class Way>
void dw_rows(const cpu::BitmapDwJob& job, std::int64_t begin, std::int64_t end) {
  using T = typename Way::Value;
  constexpr int kOuter = 4, kVectors = cpu::kBitmapDwCols / kLanes;
  constexpr std::int64_t kDwRows = 48;  // that read a panel of x from L2 or L3 once, 12 KB of sums
  constexpr std::int64_t kSteps = 64;   // of a panel, 16 KB, which lie in L1 for all rows
  const std::int64_t bytes = job.w.row_bytes();
  alignas(64) float tile[kDwRows * cpu::kBitmapDwCols];
  T* next[kDwRows];
  for (std::int64_t row = begin; row < end; row += kDwRows) {
    const std::int64_t rows = std::min(kDwRows, end - row);
    for (std::int64_t r = 0; r < rows; ++r) next[r] = static_cast<T*>(job.args.out) + job.w.crow[row + r];
    for (std::int64_t panel = 0; panel < job.w.cols; panel += cpu::kBitmapDwCols) {
      const float* const x = job.x + panel * job.steps;
      const auto add = [&](std::int64_t step, auto chain) __attribute__((always_inline)) {
        for (std::int64_t r = 0; r < rows; r += kOuter)  // rows behind the last one are zero
          add_cells<Way, decltype(chain)::value, kOuter, kVectors>(
              x + step * cpu::kBitmapDwCols, std::min(kSteps, job.steps - step), cpu::kBitmapDwCols,
              job.dy + (row + r) * job.dy_stride + step, job.dy_stride, tile + r * cpu::kBitmapDwCols,
              cpu::kBitmapDwCols);
      };
      add(0, std::integral_constant<Chain, Chain::only>{});
      for (std::int64_t step = kSteps; step < job.steps; step += kSteps)
        add(step, std::integral_constant<Chain, Chain::of_call>{});
      const bool whole = panel + cpu::kBitmapDwCols <= 8 * bytes;
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::uint8_t* const of_row = job.w.bits + (row + r) * bytes;
        const std::int64_t number = panel / cpu::kBitmapDwCols;
        const std::uint64_t bits = whole ? bits_of<cpu::kBitmapDwCols>(of_row, number)
                                         : last_bits_of<cpu::kBitmapDwCols>(of_row, number, bytes);
        const T* const end_of_row = static_cast<const T*>(job.args.out) + job.w.crow[row + r + 1];
        next[r] = Way::keep(next[r], end_of_row, tile + r * cpu::kBitmapDwCols, bits);
      }
    }
  }
}
