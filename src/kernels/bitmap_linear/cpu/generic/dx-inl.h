// dX of the expand kernels. Included after cells-inl.h. A cell of W holds kCellRows elements of a column, one
// row below the other, and a cell of dY those of as many rows. Besides what expand-inl.h asks of a Way:
//   kCellRows        1 in fp32, 2 in bf16
//   splat_one(dy)    one element of dY as prepared, in all fp32 lanes
//   expand_pair(...) with two rows: expand_row() of both, into cells

// sums += dy of one row w, where dy is not finite: it must not reach columns where a row stores nothing.
template <class Way>
void add_masked_row(const std::uint8_t* bits, std::int64_t bytes, const typename Way::Value*& p,
                    std::int64_t first, std::int64_t vectors, const typename Way::X* dy,
                    std::int64_t dy_stride, std::int64_t tokens, float* sums) {
  for (std::int64_t i = 0; i < vectors; ++i) {
    const unsigned here = (first + i + 1) * kLanes <= 8 * bytes
                              ? bits_of<kLanes>(bits, first + i)
                              : last_bits_of<kLanes>(bits, first + i, bytes);
    const Vec w = expanded(p, here);
    p += std::popcount(here);
    for (std::int64_t t = 0; t < tokens; ++t) {
      float* const at = sums + (t * vectors + i) * kLanes;
      store(at, fma(load(at), masked(Way::splat_one(dy + t * dy_stride), here), w));
    }
  }
}

inline void move_sums(float* sums, float* whole, std::int64_t size, bool first) {
  for (std::int64_t i = 0; i < size; i += kLanes) {
    store(whole + i, first ? load(sums + i) : load(whole + i) + load(sums + i));
    store(sums + i, zero());
  }
}

// The gradients of `tokens` tokens from `token` on at `vectors` vectors of columns; room.next has the values'
// places at the first column, and then those behind the last.
template <class Way>
void dx_chunk(const cpu::BitmapJob& job, std::int64_t token, std::int64_t tokens, std::int64_t first,
              std::int64_t vectors, const cpu::BitmapRoom& room) {
  using T = typename Way::Value;
  constexpr std::int64_t kRows = Way::kCellRows;
  alignas(64) float panel[cpu::kBitmapExpanded];
  const std::int64_t bytes = job.w.row_bytes(), cols = vectors * kLanes, size = tokens * cols;
  // A power of two: after how many rows sums are set aside must not depend on the columns of an item.
  const auto room_of = static_cast<std::uint64_t>(cpu::kBitmapExpanded / cols);
  const auto at_once =
      std::min<std::int64_t>(kLongestChain, kRows * static_cast<std::int64_t>(std::bit_floor(room_of)));
  const std::int64_t dy_cells = job.x_stride / kRows;
  const auto* const dy = static_cast<const typename Way::X*>(job.x) + token * job.x_stride;
  const auto* const cells = static_cast<const float*>(job.x) + token * dy_cells;
  std::fill_n(room.sums, size, 0.0f);
  bool begun = false;
  // No hardware prefetcher knows where the next rows' columns are. So many bytes a row has on average.
  constexpr std::int64_t kRowsAhead = 8;
  const std::int64_t of_row = job.w.stored / job.w.rows * std::min(cols, job.w.cols) / job.w.cols *
                                  static_cast<std::int64_t>(sizeof(T)) +
                              64;
  for (std::int64_t row = 0; row < job.w.rows; row += at_once) {
    const std::int64_t rows = std::min(at_once, job.w.rows - row);
    if (row > 0 && row % kLongestChain == 0) {
      move_sums(room.sums, room.whole, size, !begun);
      begun = true;
    }
    for (std::int64_t r = row; r < row + rows;) {
      for (std::int64_t i = 0; i < kRows && r + kRowsAhead + i < job.w.rows; ++i) {
        const std::int64_t ahead = r + kRowsAhead + i;
        const auto* const values = reinterpret_cast<const char*>(values_of<T>(job, ahead) + room.next[ahead]);
        for (std::int64_t byte = 0; byte < of_row; byte += 64) __builtin_prefetch(values + byte);
        __builtin_prefetch(job.w.bits + ahead * bytes + first * kLanes / 8);
      }
      const T* p = values_of<T>(job, r) + room.next[r];
      const std::uint8_t* const bits = job.w.bits + r * bytes;
      float* const to = panel + (r - row) / kRows * cols;
      bool both = false;  // r and the row after it
      if (!job.finite) {
        add_masked_row<Way>(bits, bytes, p, first, vectors, dy + r, job.x_stride, tokens, room.sums);
      } else if constexpr (kRows == 2) {
        both = r + 1 < row + rows;
        const T* second = both ? values_of<T>(job, r + 1) + room.next[r + 1] : nullptr;
        Way::expand_pair(bits, both ? bits + bytes : nullptr, bytes, p, second, first, vectors, to);
        if (both) room.next[r + 1] = static_cast<std::int32_t>(second - values_of<T>(job, r + 1));
      } else {
        expand_row<Way>(bits, bytes, p, first, vectors, to, nullptr);
      }
      room.next[r] = static_cast<std::int32_t>(p - values_of<T>(job, r));
      r += both ? 2 : 1;
    }
    if (!job.finite) continue;
    std::int64_t t = 0;
    const auto add = [&](auto few, auto wide) __attribute__((always_inline)) {
      add_cells<Way, Chain::whole, decltype(few)::value, decltype(wide)::value>(
          panel, (rows + kRows - 1) / kRows, cols, cells + t * dy_cells + row / kRows, dy_cells,
          room.sums + t * cols, cols);
      t += decltype(few)::value;
    };
    while (t + 4 <= tokens)
      add(std::integral_constant<int, 4>{}, std::integral_constant < int, kRegisters >= 32 ? 6 : 3 > {});
    while (t < tokens) add(std::integral_constant<int, 1>{}, std::integral_constant<int, 8>{});
  }
  if (begun) {
    move_sums(room.sums, room.whole, size, false);
    std::copy_n(room.whole, size, room.sums);
  }
}

template <class Way>
void dx_expand(const cpu::BitmapJob& job, std::int64_t begin, std::int64_t end, const cpu::BitmapRoom& room) {
  using T = typename Way::Value;
  const BitmapView& w = job.w;
  const std::int64_t wide = cpu::bitmap_dx_cols(job.args.m);
  for (std::int64_t token = 0; token < job.args.m; token += cpu::kBitmapTokens) {
    const std::int64_t tokens = std::min(cpu::kBitmapTokens, job.args.m - token);
    for (std::int64_t row = 0; row < w.rows; ++row) {
      const std::uint8_t* const bits = w.bits + row * w.row_bytes();
      std::int32_t before = 0;
      for (std::int64_t byte = 0; byte < begin / 8; byte += 8) {
        std::uint64_t word;
        std::memcpy(&word, bits + byte, 8);
        before += std::popcount(word);
      }
      room.next[row] = before;
    }
    for (std::int64_t col = begin; col < end; col += wide) {
      const std::int64_t cols = std::min(wide, end - col);
      // of two rows a vector of values is two vectors of cells
      const std::int64_t vectors = vectors_of<Way::kColumns>(cols) * (Way::kColumns / kLanes);
      dx_chunk<Way>(job, token, tokens, col / kLanes, vectors, room);
      for (std::int64_t t = 0; t < tokens; ++t) {
        T* const out = static_cast<T*>(job.args.out) + (token + t) * job.args.out_stride + col;
        const float* const sums = room.sums + t * vectors * kLanes;
        std::int64_t c = 0;
        for (; c + kLanes <= cols; c += kLanes) narrow(out + c, load(sums + c));
        if (c < cols) narrow_first(out + c, load(sums + c), cols - c);
      }
    }
  }
}
