// The lanes kernels. Included inside an instruction set's region, after its vector.h and chain-inl.h.

// Entries with sums of their own, enough to hide the latency of additions.
template <int kVectors>
constexpr int kChains = kRegisters >= 32 ? 8 / kVectors : 4 / kVectors;

// The values of a row in fp32, kLanes at a time; each is broadcast to all lanes.
template <class T>
[[gnu::always_inline]] inline const float* widened(const T* values, std::int64_t n, float* buffer) {
  if constexpr (std::is_same_v<T, float>) return values;
  store(buffer, n >= kLanes ? widen(values) : widen_first(values, n));
  return buffer;
}

// [token][feature] -> [feature][token] of one panel: squares of kLanes x kLanes are transposed in registers.
template <class T>
void pack_as(const cpu::CsrPack& p, int vectors, std::int64_t panel, std::int64_t begin, std::int64_t end) {
  const std::int64_t tokens = std::int64_t{vectors} * kLanes;
  float* const out = p.panels + panel * tokens * p.depth;
  for (std::int64_t k = begin; k < end; k += kLanes) {
    const std::int64_t features = std::min<std::int64_t>(kLanes, end - k);
    for (int v = 0; v < vectors; ++v) {
      const std::int64_t token = panel * tokens + v * kLanes, valid = p.m - token;
      const T* const from = static_cast<const T*>(p.from) + token * p.stride + k;
      Vec square[kLanes];
      unroll<kLanes>(SPARSELOOM_UNROLLED(i) {
        const T* const row = from + i.value * p.stride;
        square[i.value] = i.value >= valid     ? zero()
                          : features == kLanes ? widen(row)
                                               : widen_first(row, features);
      });
      transpose(square);
      float* const to = out + k * tokens + v * kLanes;
      unroll<kLanes>(SPARSELOOM_UNROLLED(i) {
        if (i.value < features) store(to + i.value * tokens, square[i.value]);
      });
    }
  }
}

void pack_lanes(const cpu::CsrPack& p, int vectors, std::int64_t panel, std::int64_t begin,
                std::int64_t end) {
  switch (p.dtype) {
    case DType::f16: return pack_as<cpu::F16>(p, vectors, panel, begin, end);
    case DType::bf16: return pack_as<cpu::Bf16>(p, vectors, panel, begin, end);
    default: return pack_as<float>(p, vectors, panel, begin, end);
  }
}

// Sums of the elements [begin, end) of one row of W over a panel.
template <class T, int kVectors>
[[gnu::always_inline]] inline void lanes_row(const CsrView& w, const T* values, const float* panel,
                                             std::int64_t begin, std::int64_t end, float* out) {
  constexpr std::int64_t kTokens = kVectors * kLanes;
  constexpr int kEntries = kChains<kVectors>;
  static_assert(kEntries >= 1 && kLanes % kEntries == 0);
  Vec acc[kEntries][kVectors];
  unroll<kEntries>(SPARSELOOM_UNROLLED(e) {
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) { acc[e.value][v.value] = zero(); });
  });
  alignas(64) float buffer[kLanes];
  for (std::int64_t i = begin; i < end; i += kLanes) {
    const std::int64_t n = std::min<std::int64_t>(kLanes, end - i);
    const float* const wide = widened(values + i, n, buffer);
    std::int64_t e = 0;
    for (; e + kEntries <= n; e += kEntries)
      unroll<kEntries>(SPARSELOOM_UNROLLED(j) {
        const float* const x = panel + w.col[i + e + j.value] * kTokens;
        const Vec weight = splat(wide + e + j.value);
        unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
          acc[j.value][v.value] = fma(acc[j.value][v.value], load(x + v.value * kLanes), weight);
        });
      });
    for (; e < n; ++e) {
      const float* const x = panel + w.col[i + e] * kTokens;
      const Vec weight = splat(wide + e);
      unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
        acc[0][v.value] = fma(acc[0][v.value], load(x + v.value * kLanes), weight);
      });
    }
  }
  unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
    Vec sum = acc[0][v.value];
    unroll<kEntries - 1>(SPARSELOOM_UNROLLED(e) { sum = sum + acc[e.value + 1][v.value]; });
    store(out + v.value * kLanes, sum);
  });
}

// Sums a whole row that is too long for one chain of additions (chain-inl.h).
template <class T, int kVectors>
[[gnu::noinline]] void long_lanes_row(const CsrView& w, const T* values, const float* panel, std::int64_t row,
                                      float* out) {
  constexpr std::int64_t kTokens = kVectors * kLanes, kMost = kChains<kVectors> * kLongestChain;
  alignas(64) float part[kTokens];
  std::fill_n(out, kTokens, 0.0f);
  for (std::int64_t i = w.crow[row]; i < w.crow[row + 1]; i += kMost) {
    lanes_row<T, kVectors>(w, values, panel, i, std::min<std::int64_t>(i + kMost, w.crow[row + 1]), part);
    for (std::int64_t t = 0; t < kTokens; t += kLanes) store(out + t, load(out + t) + load(part + t));
  }
}

template <class T, int kVectors>
void forward_of(const cpu::CsrJob& job, std::int64_t panel, std::int64_t begin, std::int64_t end) {
  // Outputs that are written together. Tokens of Y often are at a multiple of 4 KB, so that lines of all of
  // them share one set of L1: writing several lines of a token in turn takes a tenth less time than one if
  // rows are short (Zen 3).
  constexpr std::int64_t kTokens = kVectors * kLanes, kWritten = 4 * cpu::kCsrOutputs;
  const MatmulArgs& args = job.args;
  const float* const x = job.a + panel * kTokens * job.w.cols;
  const std::int64_t token = panel * kTokens;
  alignas(64) float tile[kWritten * kTokens];
  for (std::int64_t row = begin; row < end; row += kWritten) {
    const std::int64_t rows = std::min(kWritten, end - row);
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* const values = static_cast<const T*>(args.values);
      const std::int64_t first = job.w.crow[row + r], last = job.w.crow[row + r + 1];
      if (last - first > kChains<kVectors> * kLongestChain) [[unlikely]]
        long_lanes_row<T, kVectors>(job.w, values, x, row + r, tile + r * kTokens);
      else
        lanes_row<T, kVectors>(job.w, values, x, first, last, tile + r * kTokens);
    }
    const T* const bias = static_cast<const T*>(args.bias);
    const T* const residual = static_cast<const T*>(args.residual);
    cpu::write_tile({tile, kTokens, std::min(kTokens, args.m - token), rows, args.dtype, args.activation,
                     bias == nullptr ? nullptr : bias + row,
                     static_cast<T*>(args.out) + token * args.out_stride + row, args.out_stride, nullptr,
                     residual == nullptr ? nullptr : residual + token * args.residual_stride + row,
                     args.residual_stride});
  }
}

// Adds the sums of a chunk of dX's rows to `whole`, which follows them, and restarts them; at the chunk's end
// adds `whole` back to them.
inline void set_aside_columns(float* sums, std::int64_t size, bool first) {
  float* const whole = sums + size;
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const Vec sum = load(sums + i);
    store(whole + i, first ? sum : load(whole + i) + sum);
    store(sums + i, zero());
  }
}
inline void take_back_columns(float* sums, std::int64_t size) {
  for (std::int64_t i = 0; i < size; i += kLanes) store(sums + i, load(sums + size + i) + load(sums + i));
}

// Adds the rows [begin, end) of W by add(row) to `sums` [size], which is followed by as many more if
// job.sides is 2.
template <class Job, class Add>
[[gnu::always_inline]] inline void add_rows(const Job& job, float* sums, std::int64_t size,
                                            std::int64_t begin, std::int64_t end, Add add) {
  const CsrView& w = job.w;
  std::fill_n(sums, size, 0.0f);
  if (job.sides == 1) {
    for (std::int64_t row = begin; row < end; ++row) add(row);
    return;
  }
  const std::int64_t most = cpu::kColumnMean * w.cols;
  bool begun = false;
  for (std::int64_t row = begin; row < end;) {
    const std::int64_t from = w.crow[row];
    do add(row);
    while (++row < end && w.crow[row + 1] - from <= most);
    if (row == end) break;
    set_aside_columns(sums, size, !begun);
    begun = true;
  }
  if (begun) take_back_columns(sums, size);
}

// dX: each row of W is multiplied by dY's vectors of that row and added to the sums of its columns.
template <class T, int kVectors>
void dx_of(const cpu::CsrJob& job, std::int64_t panel, std::int64_t chunk, std::int64_t begin,
           std::int64_t end) {
  constexpr std::int64_t kTokens = kVectors * kLanes;
  const CsrView& w = job.w;
  const T* const values = static_cast<const T*>(job.args.values);
  const std::int64_t size = core::round_up(w.cols, cpu::kGroup) * kTokens;
  float* const sums = job.b + (panel * job.chunks + chunk) * job.sides * size;
  alignas(64) float buffer[kLanes];
  add_rows(
      job, sums, size, begin, end, [&](std::int64_t row) __attribute__((always_inline)) {
        const float* const dy = job.a + (panel * w.rows + row) * kTokens;
        Vec token[kVectors];
        unroll<kVectors>(SPARSELOOM_UNROLLED(v) { token[v.value] = load(dy + v.value * kLanes); });
        const std::int64_t last = w.crow[row + 1];
        for (std::int64_t i = w.crow[row]; i < last; i += kLanes) {
          const std::int64_t n = std::min<std::int64_t>(kLanes, last - i);
          const float* const wide = widened(values + i, n, buffer);
          for (std::int64_t e = 0; e < n; ++e) {
            float* const sum = sums + w.col[i + e] * kTokens;
            const Vec weight = splat(wide + e);
            unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
              float* const at = sum + v.value * kLanes;
              store(at, fma(load(at), token[v.value], weight));
            });
          }
        }
      });
}

template <class T>
void write_dx_as(const cpu::CsrJob& job, std::int64_t panel, std::int64_t begin, std::int64_t end) {
  const std::int64_t tokens = std::int64_t{job.vectors} * kLanes, token = panel * tokens;
  const std::int64_t size = core::round_up(job.w.cols, cpu::kGroup) * tokens;
  float* const sums = job.b + panel * job.chunks * job.sides * size;
  for (std::int64_t chunk = 1; chunk < job.chunks; ++chunk)
    for (std::int64_t i = begin * tokens; i < end * tokens; i += kLanes)
      store(sums + i, load(sums + i) + load(sums + chunk * job.sides * size + i));
  const MatmulArgs& args = job.args;
  cpu::write_tile({sums + begin * tokens, tokens, std::min(tokens, args.m - token), end - begin, args.dtype,
                   Activation::none, nullptr, static_cast<T*>(args.out) + token * args.out_stride + begin,
                   args.out_stride});
}

// dW at the stored elements: the product of dY's vectors of a row and X's of a column, summed over the lanes
// for kLanes elements at once.
template <class T, int kVectors>
void dw_of(const cpu::CsrJob& job, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kTokens = kVectors * kLanes;
  const CsrView& w = job.w;
  const bool apart = !std::is_same_v<T, float> && !job.args.accumulate;
  float* const whole = apart ? job.sums : static_cast<float*>(job.args.out);
  const bool parts = job.panel_count > cpu::kMostPanels;
  float* const out = parts ? job.part : whole;
  for (std::int64_t panel = 0; panel < job.panel_count; ++panel) {
    const float* const x = job.b + panel * kTokens * w.cols;
    const bool adds = parts ? panel % cpu::kMostPanels > 0 : panel > 0 || job.args.accumulate;
    for (std::int64_t row = begin; row < end; ++row) {
      const float* const dy = job.a + (panel * w.rows + row) * kTokens;
      Vec token[kVectors];
      unroll<kVectors>(SPARSELOOM_UNROLLED(v) { token[v.value] = load(dy + v.value * kLanes); });
      const auto product = [&](std::int64_t i) __attribute__((always_inline)) {
        const float* const column = x + w.col[i] * kTokens;
        Vec sum = zero();
        unroll<kVectors>(
            SPARSELOOM_UNROLLED(v) { sum = fma(sum, load(column + v.value * kLanes), token[v.value]); });
        return sum;
      };
      const std::int64_t last = w.crow[row + 1];
      std::int64_t i = w.crow[row];
      for (; i + kLanes <= last; i += kLanes) {
        Vec sums[kLanes];
        unroll<kLanes>(SPARSELOOM_UNROLLED(e) { sums[e.value] = product(i + e.value); });
        const Vec all = sum_lanes(sums);
        store(out + i, adds ? load(out + i) + all : all);
      }
      if (const std::int64_t n = last - i; n > 0) {
        Vec sums[kLanes];
        unroll<kLanes>(
            SPARSELOOM_UNROLLED(e) { sums[e.value] = e.value < n ? product(i + e.value) : zero(); });
        const Vec all = sum_lanes(sums);
        narrow_first(out + i, adds ? widen_first(out + i, n) + all : all, n);
      }
    }
    if (parts && ((panel + 1) % cpu::kMostPanels == 0 || panel + 1 == job.panel_count)) {
      const bool first = panel < cpu::kMostPanels && !job.args.accumulate;
      for (std::int64_t i = w.crow[begin]; i < w.crow[end]; ++i)
        whole[i] = first ? out[i] : whole[i] + out[i];
    }
  }
  if (!apart) return;
  T* const rounded = static_cast<T*>(job.args.out);
  const std::int64_t last = w.crow[end];
  std::int64_t i = w.crow[begin];
  for (; i + kLanes <= last; i += kLanes) narrow(rounded + i, load(whole + i));
  if (i < last) narrow_first(rounded + i, widen_first(whole + i, last - i), last - i);
}

// Calls use(type, vectors) with a null pointer of the dtype's type and a constant.
template <class Use>
[[gnu::always_inline]] inline void with_lanes(const cpu::CsrJob& job, Use use) {
  const auto of = [&](auto* type) __attribute__((always_inline)) {
    if (job.vectors == 1) return use(type, std::integral_constant<int, 1>{});
    if (job.vectors == 2) return use(type, std::integral_constant<int, 2>{});
    use(type, std::integral_constant<int, 4>{});
  };
  if (job.args.dtype == DType::f16)
    of(static_cast<cpu::F16*>(nullptr));
  else if (job.args.dtype == DType::bf16)
    of(static_cast<cpu::Bf16*>(nullptr));
  else
    of(static_cast<float*>(nullptr));
}
#define SPARSELOOM_CSR_TYPE(type) std::remove_pointer_t<decltype(type)>

void forward_lanes(const cpu::CsrJob& job, std::int64_t panel, std::int64_t begin, std::int64_t end) {
  with_lanes(
      job, [&](auto* type, auto vectors) __attribute__((always_inline)) {
        forward_of<SPARSELOOM_CSR_TYPE(type), vectors.value>(job, panel, begin, end);
      });
}
void dx_lanes(const cpu::CsrJob& job, std::int64_t panel, std::int64_t chunk, std::int64_t begin,
              std::int64_t end) {
  with_lanes(
      job, [&](auto* type, auto vectors) __attribute__((always_inline)) {
        dx_of<SPARSELOOM_CSR_TYPE(type), vectors.value>(job, panel, chunk, begin, end);
      });
}
void write_dx_lanes(const cpu::CsrJob& job, std::int64_t panel, std::int64_t begin, std::int64_t end) {
  switch (job.args.dtype) {
    case DType::f16: return write_dx_as<cpu::F16>(job, panel, begin, end);
    case DType::bf16: return write_dx_as<cpu::Bf16>(job, panel, begin, end);
    default: return write_dx_as<float>(job, panel, begin, end);
  }
}
void dw_lanes(const cpu::CsrJob& job, std::int64_t begin, std::int64_t end) {
  with_lanes(
      job, [&](auto* type, auto vectors) __attribute__((always_inline)) {
        dw_of<SPARSELOOM_CSR_TYPE(type), vectors.value>(job, begin, end);
      });
}
