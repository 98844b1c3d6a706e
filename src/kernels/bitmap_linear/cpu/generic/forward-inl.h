// Forward of the expand kernels. Included after tokens-inl.h.

// Sums of one row for kTokens tokens from x on. kMasked: zeros must not be multiplied with x.
template <class Way, int kTokens, bool kMasked>
[[gnu::always_inline]] inline void row_of_few(const cpu::BitmapJob& job, const typename Way::X* x,
                                              std::int64_t row, float* out) {
  // Vectors with sums of their own, enough to hide the latency of additions.
  constexpr int kStep = 4, kChains = kTokens >= 4 ? 1 : 4 / kTokens;
  constexpr int kSums = kTokens + (Way::kOffset ? 1 : 0);  // the last ones are the row's own
  const std::int64_t bytes = job.w.row_bytes(), whole = bytes * 8 / Way::kColumns;
  const std::uint8_t* const bits = job.w.bits + row * bytes;
  const typename Way::Value* p = values_of<typename Way::Value>(job, row);
  typename Way::V acc[kSums][kChains];
  unroll<kSums>(SPARSELOOM_UNROLLED(t) {
    unroll<kChains>(SPARSELOOM_UNROLLED(c) { acc[t.value][c.value] = Way::none(); });
  });
  const auto add = [&](std::int64_t i, auto here, auto chain) __attribute__((always_inline)) {
    constexpr int kChain = decltype(chain)::value % kChains;
    const auto w = Way::weights(p, here);
    p += std::popcount(here);
    unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
      auto inputs = Way::load(x + t.value * job.x_stride + i * Way::kColumns);
      if constexpr (kMasked) inputs = Way::kept(inputs, here);
      acc[t.value][kChain] = Way::step(acc[t.value][kChain], inputs, w);
    });
    if constexpr (Way::kOffset) acc[kTokens][kChain] = Way::step(acc[kTokens][kChain], Way::offset(), w);
  };
  const auto add_step = [&](std::int64_t step) __attribute__((always_inline)) {
    // The hardware's prefetches end with a page: without this, one token takes 1.1 (bf16) to 1.4 times as
    // long (fp32, Zen 3).
    __builtin_prefetch(reinterpret_cast<const char*>(p) + 2048);
    unroll<kStep>(SPARSELOOM_UNROLLED(i) {
      add(step * kStep + i.value, bits_of<Way::kColumns>(bits, step * kStep + i.value), i);
    });
  };
  if constexpr (Way::kOffset)  // integers: their sums need not be set aside
    for (std::int64_t step = 0; step < whole / kStep; ++step) add_step(step);
  else
    in_chains(0, whole / kStep, kStep / kChains, acc, add_step);
  constexpr std::integral_constant<int, 0> kFirst{};
  for (std::int64_t i = whole / kStep * kStep; i < whole; ++i)
    add(i, bits_of<Way::kColumns>(bits, i), kFirst);
  if (whole * Way::kColumns < 8 * bytes) add(whole, last_bits_of<Way::kColumns>(bits, whole, bytes), kFirst);
  unroll<kSums>(SPARSELOOM_UNROLLED(t) {
    unroll<kChains - 1>(
        SPARSELOOM_UNROLLED(c) { acc[t.value][0] = Way::add(acc[t.value][0], acc[t.value][c.value + 1]); });
  });
  unroll<kTokens>(SPARSELOOM_UNROLLED(t) { out[t.value] = Way::total(acc[t.value][0], acc[kSums - 1][0]); });
}

// sums [kPanelRows][kBitmapTokens] of vectors (+)= w [kPanelRows][kPanelBytes] x^T of kTokens tokens. Out of
// line: among the loops of its callers GCC 12 stores every integer sum after every step.
template <class Way, int kTokens>
[[gnu::noinline]] inline void multiply_panel(const typename Way::X* w, const typename Way::X* x,
                                             std::int64_t x_stride, std::int64_t vectors, float* sums,
                                             bool begun) {
  constexpr std::int64_t kPanelCols = kPanelBytes / static_cast<std::int64_t>(sizeof(typename Way::X));
  typename Way::V acc[kPanelRows][kTokens];
  unroll<kPanelRows>(SPARSELOOM_UNROLLED(r) {
    unroll<kTokens>(SPARSELOOM_UNROLLED(t) { acc[r.value][t.value] = Way::none(); });
  });
  for (std::int64_t i = 0; i < vectors; ++i) {
    const std::int64_t col = i * Way::kColumns;
    typename Way::V inputs[kTokens];
    unroll<kTokens>(SPARSELOOM_UNROLLED(t) { inputs[t.value] = Way::load(x + t.value * x_stride + col); });
    unroll<kPanelRows>(SPARSELOOM_UNROLLED(r) {
      const auto weight = Way::load(w + r.value * kPanelCols + col);
      unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
        acc[r.value][t.value] = Way::step(acc[r.value][t.value], inputs[t.value], weight);
      });
    });
  }
  unroll<kPanelRows>(SPARSELOOM_UNROLLED(r) {
    unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
      float* const at = sums + (r.value * cpu::kBitmapTokens + t.value) * kLanes;
      auto all = acc[r.value][t.value];
      if (begun) all = Way::add(Way::load(at), all);
      Way::store(at, all);
    });
  });
}

template <class Way, int kTokens = kPanelTokens>
inline void multiply_rest(std::int64_t tokens, const typename Way::X* w, const typename Way::X* x,
                          std::int64_t x_stride, std::int64_t vectors, float* sums, bool begun) {
  if constexpr (kTokens > 0) {
    if (tokens == kTokens) return multiply_panel<Way, kTokens>(w, x, x_stride, vectors, sums, begun);
    return multiply_rest<Way, kTokens - 1>(tokens, w, x, x_stride, vectors, sums, begun);
  }
}

// Sums of kPanelRows rows for up to kBitmapTokens tokens from x on, as out [rows][out_stride].
template <class Way>
void rows_of_many(const cpu::BitmapJob& job, const typename Way::X* x, std::int64_t tokens, std::int64_t row,
                  std::int64_t rows, float* out, std::int64_t out_stride) {
  using X = typename Way::X;
  constexpr std::int64_t kPanelCols = kPanelBytes / static_cast<std::int64_t>(sizeof(X));
  alignas(64) X panel[kPanelRows * kPanelCols];
  static_assert(cpu::kBitmapTokens % kLanes == 0);
  alignas(64) float sums[kPanelRows * cpu::kBitmapTokens * kLanes];
  if (rows < kPanelRows) std::memset(static_cast<void*>(panel), 0, sizeof panel);
  const std::int64_t bytes = job.w.row_bytes(), vectors = vectors_of<Way::kColumns>(job.w.cols);
  const typename Way::Value* next[kPanelRows];
  typename Way::V offsets[kPanelRows];
  for (std::int64_t r = 0; r < rows; ++r)
    next[r] = values_of<typename Way::Value>(job, row + r), offsets[r] = Way::none();
  for (std::int64_t first = 0; first < vectors; first += kPanelCols / Way::kColumns) {
    const std::int64_t here = std::min(kPanelCols / Way::kColumns, vectors - first);
    for (std::int64_t r = 0; r < rows; ++r)
      expand_row<Way>(job.w.bits + (row + r) * bytes, bytes, next[r], first, here, panel + r * kPanelCols,
                      offsets + r);
    std::int64_t t = 0;
    const auto at = [&] { return x + t * job.x_stride + first * Way::kColumns; };
    for (; t + kPanelTokens <= tokens; t += kPanelTokens)
      multiply_panel<Way, kPanelTokens>(panel, at(), job.x_stride, here, sums + t * kLanes, first > 0);
    multiply_rest<Way, kPanelTokens - 1>(tokens - t, panel, at(), job.x_stride, here, sums + t * kLanes,
                                         first > 0);
  }
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t t = 0; t < tokens; t += kLanes) {  // behind the last token: sums of no token
      const float* const at = sums + (r * cpu::kBitmapTokens + t) * kLanes;
      typename Way::V lanes[kLanes];
      unroll<kLanes>(SPARSELOOM_UNROLLED(i) { lanes[i.value] = Way::load(at + i.value * kLanes); });
      store(out + r * out_stride + t, Way::totals(lanes, offsets[r]));
    }
}

template <class Way, bool kMasked>
[[gnu::always_inline]] inline void rows_of_few(const cpu::BitmapJob& job, const typename Way::X* x,
                                               std::int64_t tokens, std::int64_t row, std::int64_t rows,
                                               float* out, std::int64_t out_stride) {
  for (std::int64_t r = 0; r < rows; ++r, out += out_stride) switch (tokens) {
      case 1: row_of_few<Way, 1, kMasked>(job, x, row + r, out); break;
      case 2: row_of_few<Way, 2, kMasked>(job, x, row + r, out); break;
      case 3: row_of_few<Way, 3, kMasked>(job, x, row + r, out); break;
      default: row_of_few<Way, 4, kMasked>(job, x, row + r, out); break;
    }
}

// The factors of `rows` outputs from `row` on, or null. write_tile reads eights of them, so that fewer than
// kBitmapRows are copied into `room`, as one that serves all is.
inline const float* factors_of(const MatmulArgs& args, std::int64_t row, std::int64_t rows, float* room) {
  if (args.w_scale == nullptr) return nullptr;
  if (args.w_scale_each && rows == cpu::kBitmapRows) return args.w_scale + row;
  for (std::int64_t r = 0; r < cpu::kBitmapRows; ++r)
    room[r] = args.w_scale[args.w_scale_each ? row + std::min(r, rows - 1) : 0];
  return room;
}

// tile [rows][stride] times the factors of `tokens` tokens from `token` on.
inline void scale_tokens(const MatmulArgs& args, std::int64_t token, std::int64_t tokens, std::int64_t rows,
                         float* tile, std::int64_t stride) {
  alignas(64) float factors[cpu::kBitmapTokens];
  for (std::int64_t t = 0; t < tokens; ++t) factors[t] = args.a_scale[args.a_scale_each ? token + t : 0];
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t t = 0; t < tokens; ++t) tile[r * stride + t] *= factors[t];
}

// The outputs [row, row + rows) of `tokens` tokens from `token` on, of which tile [rows][stride] has the
// sums.
inline void finish_tile(const MatmulArgs& args, std::int64_t token, std::int64_t tokens, std::int64_t row,
                        std::int64_t rows, const float* factors, float* tile, std::int64_t stride) {
  const DType dtype = is_scaled(args.dtype) ? args.out_dtype : args.dtype;
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  if (args.a_scale != nullptr) scale_tokens(args, token, tokens, rows, tile, stride);
  const auto at = [&](const void* matrix, std::int64_t row_stride) {
    return matrix == nullptr ? nullptr
                             : static_cast<const std::byte*>(matrix) + (token * row_stride + row) * size;
  };
  cpu::write_tile({tile, stride, tokens, rows, dtype, args.activation,
                   args.bias == nullptr ? nullptr : static_cast<const std::byte*>(args.bias) + row * size,
                   static_cast<std::byte*>(args.out) + (token * args.out_stride + row) * size,
                   args.out_stride, factors, at(args.residual, args.residual_stride), args.residual_stride});
}

template <class Way>
void forward_expand(const cpu::BitmapJob& job, std::int64_t begin, std::int64_t end) {
  const MatmulArgs& args = job.args;
  const bool many = job.finite && args.m > cpu::kBitmapFewTokens, by_tokens = many && job.cells != nullptr;
  const std::int64_t pass = by_tokens ? job.tokens_at_once
                            : many    ? cpu::kBitmapTokens
                                      : cpu::kBitmapFewTokens;
  const std::int64_t stride = many ? cpu::kBitmapTokens : kLanes;
  alignas(64) float tile[cpu::kBitmapRows * cpu::kBitmapMostTokens], room[cpu::kBitmapRows];
  std::fill_n(tile, cpu::kBitmapRows * cpu::kBitmapTokens, 0.0f);
  for (std::int64_t row = begin; row < end; row += cpu::kBitmapRows) {
    const std::int64_t rows = std::min(cpu::kBitmapRows, end - row);
    const float* const factors = factors_of(args, row, rows, room);
    for (std::int64_t token = 0; token < args.m; token += pass) {
      const std::int64_t tokens = std::min(pass, args.m - token);
      const auto* const x = static_cast<const typename Way::X*>(job.x) + token * job.x_stride;
      if constexpr (Way::kByTokens)
        if (by_tokens) {
          rows_by_tokens<Way>(job, token, tokens, row, rows, tile);
          for (std::int64_t t = 0; t < tokens; t += cpu::kBitmapTokens)
            finish_tile(args, token + t, std::min(cpu::kBitmapTokens, tokens - t), row, rows, factors,
                        tile + t / cpu::kBitmapTokens * kTokensTile, stride);
          continue;
        }
      if (many)
        for (std::int64_t r = 0; r < rows; r += kPanelRows)
          rows_of_many<Way>(job, x, tokens, row + r, std::min<std::int64_t>(kPanelRows, rows - r),
                            tile + r * stride, stride);
      else if (Way::kFinite || job.finite)
        rows_of_few<Way, false>(job, x, tokens, row, rows, tile, stride);
      else if constexpr (!Way::kFinite)
        rows_of_few<Way, true>(job, x, tokens, row, rows, tile, stride);
      finish_tile(args, token, tokens, row, rows, factors, tile, stride);
    }
  }
}
