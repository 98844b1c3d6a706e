// The expand kernels. Included inside an instruction set's region, after its vectors and, for the bits of one
// vector, expanded(values, bits) and masked(x, bits).

constexpr std::int64_t kBitsBytes = kLanes / 8;
constexpr int kPanelRows = 4, kPanelTokens = kRegisters >= 32 ? 6 : 3;
constexpr std::int64_t kPanelCols = 512;

// The bits of vector i of a row; those past the row's end are 0.
[[gnu::always_inline]] inline unsigned bits_of(const std::uint8_t* row, std::int64_t i, std::int64_t bytes) {
  if constexpr (kBitsBytes == 1) return row[i];
  std::uint16_t both = 0;
  if (2 * i + 2 <= bytes)
    std::memcpy(&both, row + 2 * i, 2);
  else
    both = row[2 * i];
  return both;
}

// Where a row's values begin.
template <class T>
[[gnu::always_inline]] inline const T* values_of(const cpu::BitmapJob& job, std::int64_t row) {
  const void* const base = row >= job.tail ? job.tail_values : job.args.values;
  return static_cast<const T*>(base) + job.w.crow[row];
}

inline std::int64_t vectors_of(std::int64_t cols) { return (cols + kLanes - 1) / kLanes; }

// Sums of one row for kTokens tokens from x on. kFinite: zeros may be multiplied with x.
template <class T, int kTokens, bool kFinite>
[[gnu::always_inline]] inline void row_of_few(const cpu::BitmapJob& job, const float* x, std::int64_t row,
                                              float* out, std::int64_t out_stride) {
  // Vectors with sums of their own, enough to hide the latency of additions.
  constexpr int kStep = 4, kChains = kTokens >= 4 ? 1 : 4 / kTokens;
  const std::int64_t bytes = job.w.row_bytes(), vectors = vectors_of(job.w.cols);
  const std::uint8_t* const bits = job.w.bits + row * bytes;
  const T* p = values_of<T>(job, row);
  Vec acc[kTokens][kChains];
  unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
    unroll<kChains>(SPARSELOOM_UNROLLED(c) { acc[t.value][c.value] = zero(); });
  });
  const auto add = [&](std::int64_t i, auto chain) __attribute__((always_inline)) {
    const unsigned here = bits_of(bits, i, bytes);
    const Vec w = expanded(p, here);
    p += std::popcount(here);
    unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
      Vec inputs = load(x + t.value * job.x_stride + i * kLanes);
      if constexpr (!kFinite) inputs = masked(inputs, here);
      Vec& sum = acc[t.value][decltype(chain)::value % kChains];
      sum = fma(sum, inputs, w);
    });
  };
  in_chains(
      0, vectors / kStep, kStep / kChains, acc, [&](std::int64_t step) __attribute__((always_inline)) {
        // The hardware's prefetches end with a page: without this, one token takes 1.1 (bf16) to 1.4 times as
        // long (fp32, Zen 3).
        __builtin_prefetch(reinterpret_cast<const char*>(p) + 2048);
        unroll<kStep>(SPARSELOOM_UNROLLED(i) { add(step * kStep + i.value, i); });
      });
  for (std::int64_t i = vectors / kStep * kStep; i < vectors; ++i) add(i, std::integral_constant<int, 0>{});
  unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
    Vec all = acc[t.value][0];
    unroll<kChains - 1>(SPARSELOOM_UNROLLED(c) { all = all + acc[t.value][c.value + 1]; });
    out[t.value * out_stride] = sum(all);
  });
}

// Expands the columns of one row from vector `first` on into `to`, and advances p.
template <class T>
[[gnu::always_inline]] inline void expand_row(const std::uint8_t* bits, std::int64_t bytes, const T*& p,
                                              std::int64_t first, std::int64_t vectors, float* to) {
  const T* at = p;
  for (std::int64_t i = 0; i < vectors; ++i) {
    const unsigned here = bits_of(bits, first + i, bytes);
    store(to + i * kLanes, expanded(at, here));
    at += std::popcount(here);
  }
  p = at;
}

// sums [kPanelRows][kBitmapTokens][kLanes] += w [kPanelRows][kPanelCols] x^T of kTokens tokens.
template <int kTokens>
[[gnu::always_inline]] inline void multiply_panel(const float* w, const float* x, std::int64_t x_stride,
                                                  std::int64_t cols, float* sums) {
  Vec acc[kPanelRows][kTokens];
  const auto place = [&](int r, int t) { return sums + (r * cpu::kBitmapTokens + t) * kLanes; };
  unroll<kPanelRows>(SPARSELOOM_UNROLLED(r) {
    unroll<kTokens>(SPARSELOOM_UNROLLED(t) { acc[r.value][t.value] = zero(); });
  });
  for (std::int64_t c = 0; c < cols; c += kLanes) {
    Vec inputs[kTokens];
    unroll<kTokens>(SPARSELOOM_UNROLLED(t) { inputs[t.value] = load(x + t.value * x_stride + c); });
    unroll<kPanelRows>(SPARSELOOM_UNROLLED(r) {
      const Vec weight = load(w + r.value * kPanelCols + c);
      unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
        acc[r.value][t.value] = fma(acc[r.value][t.value], inputs[t.value], weight);
      });
    });
  }
  unroll<kPanelRows>(SPARSELOOM_UNROLLED(r) {
    unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
      float* const at = place(r.value, t.value);
      store(at, load(at) + acc[r.value][t.value]);
    });
  });
}

template <int kTokens = kPanelTokens>
inline void multiply_rest(std::int64_t tokens, const float* w, const float* x, std::int64_t x_stride,
                          std::int64_t cols, float* sums) {
  if constexpr (kTokens > 0) {
    if (tokens == kTokens) return multiply_panel<kTokens>(w, x, x_stride, cols, sums);
    return multiply_rest<kTokens - 1>(tokens, w, x, x_stride, cols, sums);
  }
}

// Sums of kPanelRows rows for up to kBitmapTokens tokens from x on, as out [rows][out_stride].
template <class T>
void rows_of_many(const cpu::BitmapJob& job, const float* x, std::int64_t tokens, std::int64_t row,
                  std::int64_t rows, float* out, std::int64_t out_stride) {
  alignas(64) float panel[kPanelRows * kPanelCols], sums[kPanelRows * cpu::kBitmapTokens * kLanes];
  std::fill_n(sums, kPanelRows * cpu::kBitmapTokens * kLanes, 0.0f);
  if (rows < kPanelRows) std::fill_n(panel, kPanelRows * kPanelCols, 0.0f);
  const std::int64_t bytes = job.w.row_bytes(), vectors = vectors_of(job.w.cols);
  const T* next[kPanelRows];
  for (std::int64_t r = 0; r < rows; ++r) next[r] = values_of<T>(job, row + r);
  for (std::int64_t first = 0; first < vectors; first += kPanelCols / kLanes) {
    const std::int64_t here = std::min(kPanelCols / kLanes, vectors - first), cols = here * kLanes;
    for (std::int64_t r = 0; r < rows; ++r)
      expand_row(job.w.bits + (row + r) * bytes, bytes, next[r], first, here, panel + r * kPanelCols);
    std::int64_t t = 0;
    const auto at = [&] { return x + t * job.x_stride + first * kLanes; };
    for (; t + kPanelTokens <= tokens; t += kPanelTokens)
      multiply_panel<kPanelTokens>(panel, at(), job.x_stride, cols, sums + t * kLanes);
    multiply_rest<kPanelTokens - 1>(tokens - t, panel, at(), job.x_stride, cols, sums + t * kLanes);
  }
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t t = 0; t < tokens; ++t)
      out[r * out_stride + t] = sum(load(sums + (r * cpu::kBitmapTokens + t) * kLanes));
}

template <class T, bool kFinite>
[[gnu::always_inline]] inline void rows_of_few(const cpu::BitmapJob& job, const float* x, std::int64_t tokens,
                                               std::int64_t row, std::int64_t rows, float* out,
                                               std::int64_t out_stride) {
  for (std::int64_t r = 0; r < rows; ++r, out += out_stride) switch (tokens) {
      case 1: row_of_few<T, 1, kFinite>(job, x, row + r, out, 1); break;
      case 2: row_of_few<T, 2, kFinite>(job, x, row + r, out, 1); break;
      case 3: row_of_few<T, 3, kFinite>(job, x, row + r, out, 1); break;
      default: row_of_few<T, 4, kFinite>(job, x, row + r, out, 1); break;
    }
}

template <class T>
void forward_expand(const cpu::BitmapJob& job, std::int64_t begin, std::int64_t end) {
  const MatmulArgs& args = job.args;
  const bool many = job.finite && args.m > cpu::kBitmapFewTokens;
  const std::int64_t pass = many ? cpu::kBitmapTokens : cpu::kBitmapFewTokens;
  const std::int64_t stride = many ? cpu::kBitmapTokens : kLanes;
  alignas(64) float tile[cpu::kBitmapRows * cpu::kBitmapTokens];
  std::fill_n(tile, cpu::kBitmapRows * cpu::kBitmapTokens, 0.0f);
  for (std::int64_t row = begin; row < end; row += cpu::kBitmapRows) {
    const std::int64_t rows = std::min(cpu::kBitmapRows, end - row);
    for (std::int64_t token = 0; token < args.m; token += pass) {
      const std::int64_t tokens = std::min(pass, args.m - token);
      const float* const x = job.x + token * job.x_stride;
      if (many)
        for (std::int64_t r = 0; r < rows; r += kPanelRows)
          rows_of_many<T>(job, x, tokens, row + r, std::min<std::int64_t>(kPanelRows, rows - r),
                          tile + r * stride, stride);
      else if (job.finite)
        rows_of_few<T, true>(job, x, tokens, row, rows, tile, stride);
      else
        rows_of_few<T, false>(job, x, tokens, row, rows, tile, stride);
      const T* const bias = static_cast<const T*>(args.bias);
      const T* const residual = static_cast<const T*>(args.residual);
      cpu::write_tile({tile, stride, tokens, rows, args.dtype, args.activation,
                       bias == nullptr ? nullptr : bias + row,
                       static_cast<T*>(args.out) + token * args.out_stride + row, args.out_stride, nullptr,
                       residual == nullptr ? nullptr : residual + token * args.residual_stride + row,
                       args.residual_stride});
    }
  }
}

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
    const unsigned here = bits_of(bits, first + i, bytes);
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
  const float* const dy = job.x + token * job.x_stride;
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
        expand_row(job.w.bits + r * bytes, bytes, p, first, vectors, panel + (r - row) * cols);
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
      const std::int64_t cols = std::min(wide, end - col), vectors = vectors_of(cols);
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

template <class T>
bool widen_as(const void* from, std::int64_t n, float* to) {
  const T* const values = static_cast<const T*>(from);
  Vec none = zero();  // 0 x is NaN unless x is finite
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec x = widen(values + i);
    none = fma(none, x, zero());
    store(to + i, x);
  }
  for (const std::int64_t room = core::round_up(n, cpu::kLineCells); i < room; i += kLanes) {
    const Vec x = i < n ? widen_first(values + i, n - i) : zero();
    none = fma(none, x, zero());
    store(to + i, x);
  }
  return sum(none) == 0;
}

#define SPARSELOOM_BY_DTYPE(dtype, function, ...)              \
  switch (dtype) {                                             \
    case DType::f16: return function<cpu::F16>(__VA_ARGS__);   \
    case DType::bf16: return function<cpu::Bf16>(__VA_ARGS__); \
    default: return function<float>(__VA_ARGS__);              \
  }
bool widen_bitmap(DType dtype, const void* from, std::int64_t n, float* to) {
  SPARSELOOM_BY_DTYPE(dtype, widen_as, from, n, to)
}
void forward_bitmap(const cpu::BitmapJob& job, std::int64_t begin, std::int64_t end) {
  SPARSELOOM_BY_DTYPE(job.args.dtype, forward_expand, job, begin, end)
}
void dx_bitmap(const cpu::BitmapJob& job, std::int64_t begin, std::int64_t end, const cpu::BitmapRoom& room) {
  SPARSELOOM_BY_DTYPE(job.args.dtype, dx_expand, job, begin, end, room)
}
#undef SPARSELOOM_BY_DTYPE
