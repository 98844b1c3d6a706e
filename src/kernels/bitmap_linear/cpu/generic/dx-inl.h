// dX of the expand kernels, in fp32. Included after expand-inl.h.

// sums [tokens][cols] += dy of `rows` rows (kTokens tokens, x_stride apart) w [rows][cols].
template <int kTokens, int kVectors>
[[gnu::always_inline]] inline void add_rows(const float* w, std::int64_t rows, std::int64_t cols,
                                            const float* dy, std::int64_t dy_stride, float* sums) {
  std::int64_t c = 0;
  const auto add = [&](auto vectors) __attribute__((always_inline)) {
    constexpr int kHere = decltype(vectors)::value;
    Vec acc[kTokens][kHere];
    unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
      unroll<kHere>(SPARSELOOM_UNROLLED(v) {
        acc[t.value][v.value] = load(sums + t.value * cols + c + v.value * kLanes);
      });
    });
    for (std::int64_t r = 0; r < rows; ++r) {
      Vec weights[kHere];
      unroll<kHere>(SPARSELOOM_UNROLLED(v) { weights[v.value] = load(w + r * cols + c + v.value * kLanes); });
      unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
        const Vec gradient = splat(dy + t.value * dy_stride + r);
        unroll<kHere>(SPARSELOOM_UNROLLED(v) {
          acc[t.value][v.value] = fma(acc[t.value][v.value], weights[v.value], gradient);
        });
      });
    }
    unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
      unroll<kHere>(SPARSELOOM_UNROLLED(v) {
        store(sums + t.value * cols + c + v.value * kLanes, acc[t.value][v.value]);
      });
    });
    c += kHere * kLanes;
  };
  while (c + kVectors * kLanes <= cols) add(std::integral_constant<int, kVectors>{});
  while (c < cols) add(std::integral_constant<int, 1>{});
}

// The same where dy is not finite: it must not reach columns where a row stores nothing.
template <class T>
void add_masked_row(const std::uint8_t* bits, std::int64_t bytes, const T*& p, std::int64_t first,
                    std::int64_t vectors, const float* dy, std::int64_t dy_stride, std::int64_t tokens,
                    float* sums) {
  for (std::int64_t i = 0; i < vectors; ++i) {
    const unsigned here = (first + i + 1) * kLanes <= 8 * bytes
                              ? bits_of<kLanes>(bits, first + i)
                              : last_bits_of<kLanes>(bits, first + i, bytes);
    const Vec w = expanded(p, here);
    p += std::popcount(here);
    for (std::int64_t t = 0; t < tokens; ++t) {
      float* const at = sums + (t * vectors + i) * kLanes;
      store(at, fma(load(at), masked(splat(dy + t * dy_stride), here), w));
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
template <class T>
void dx_chunk(const cpu::BitmapJob& job, std::int64_t token, std::int64_t tokens, std::int64_t first,
              std::int64_t vectors, const cpu::BitmapRoom& room) {
  alignas(64) float panel[cpu::kBitmapExpanded];
  const std::int64_t bytes = job.w.row_bytes(), cols = vectors * kLanes, size = tokens * cols;
  // A power of two: after how many rows sums are set aside must not depend on the columns of an item.
  const auto room_of = static_cast<std::uint64_t>(cpu::kBitmapExpanded / cols);
  const auto at_once =
      std::min<std::int64_t>(kLongestChain, static_cast<std::int64_t>(std::bit_floor(room_of)));
  const float* const dy = static_cast<const float*>(job.x) + token * job.x_stride;
  std::fill_n(room.sums, size, 0.0f);
  bool begun = false;
  for (std::int64_t row = 0; row < job.w.rows; row += at_once) {
    const std::int64_t rows = std::min(at_once, job.w.rows - row);
    if (row > 0 && row % kLongestChain == 0) {
      move_sums(room.sums, room.whole, size, !begun);
      begun = true;
    }
    for (std::int64_t r = row; r < row + rows; ++r) {
      const T* p = values_of<T>(job, r) + room.next[r];
      if (job.finite)
        expand_row<Lanes<T>>(job.w.bits + r * bytes, bytes, p, first, vectors, panel + (r - row) * cols,
                             nullptr);
      else
        add_masked_row(job.w.bits + r * bytes, bytes, p, first, vectors, dy + r, job.x_stride, tokens,
                       room.sums);
      room.next[r] = static_cast<std::int32_t>(p - values_of<T>(job, r));
    }
    if (!job.finite) continue;
    std::int64_t t = 0;
    const auto add = [&](auto few, auto wide) __attribute__((always_inline)) {
      add_rows<decltype(few)::value, decltype(wide)::value>(panel, rows, cols, dy + t * job.x_stride + row,
                                                            job.x_stride, room.sums + t * cols);
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

template <class T>
void dx_expand(const cpu::BitmapJob& job, std::int64_t begin, std::int64_t end, const cpu::BitmapRoom& room) {
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
      const std::int64_t cols = std::min(wide, end - col), vectors = vectors_of<kLanes>(cols);
      dx_chunk<T>(job, token, tokens, col / kLanes, vectors, room);
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

#define SPARSELOOM_BY_DTYPE(dtype, function, ...)              \
  switch (dtype) {                                             \
    case DType::f16: return function<cpu::F16>(__VA_ARGS__);   \
    case DType::bf16: return function<cpu::Bf16>(__VA_ARGS__); \
    default: return function<float>(__VA_ARGS__);              \
  }
void dx_bitmap(const cpu::BitmapJob& job, std::int64_t begin, std::int64_t end, const cpu::BitmapRoom& room) {
  SPARSELOOM_BY_DTYPE(job.args.dtype, dx_expand, job, begin, end, room)
}
#undef SPARSELOOM_BY_DTYPE
