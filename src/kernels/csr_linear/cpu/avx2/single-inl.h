// The single kernel. Included inside AVX2's region, after chain-inl.h and lanes-inl.h.

// x at four columns, loaded two at a time.
[[gnu::always_inline]] inline __m128 picked4(const float* x, const std::int32_t* col) {
  std::uint64_t low, high;
  std::memcpy(&low, col, sizeof low);
  std::memcpy(&high, col + 2, sizeof high);
  __m128 four = _mm_load_ss(x + static_cast<std::uint32_t>(low));
  four = _mm_insert_ps(four, _mm_load_ss(x + (low >> 32)), 0x10);
  four = _mm_insert_ps(four, _mm_load_ss(x + static_cast<std::uint32_t>(high)), 0x20);
  return _mm_insert_ps(four, _mm_load_ss(x + (high >> 32)), 0x30);
}
[[gnu::always_inline]] inline Vec picked(const float* x, const std::int32_t* col) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(picked4(x, col)), picked4(x, col + 4), 1);
}
// The first n < 8 lanes; the others are zero and read nothing.
[[gnu::always_inline]] inline Vec picked_first(const float* x, const std::int32_t* col, std::int64_t n) {
  alignas(32) float some[8] = {};
  for (std::int64_t i = 0; i < n; ++i) some[i] = x[col[i]];
  return load(some);
}

[[gnu::always_inline]] inline __m128 widen4(const float* p) { return _mm_loadu_ps(p); }
[[gnu::always_inline]] inline __m128 widen4(const cpu::F16* p) {
  return _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(p)));
}
[[gnu::always_inline]] inline __m128 widen4(const cpu::Bf16* p) {
  const __m128i bits = _mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(p));
  return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(bits), 16));
}
[[gnu::always_inline]] inline __m128 widen1(const float* p) { return _mm_load_ss(p); }
[[gnu::always_inline]] inline __m128 widen1(const cpu::F16* p) {
  return _mm_cvtph_ps(_mm_cvtsi32_si128(p->bits));
}
[[gnu::always_inline]] inline __m128 widen1(const cpu::Bf16* p) {
  return _mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(std::uint32_t{p->bits} << 16)));
}

template <class T>
void widen_as(const T* from, std::int64_t n, float* to) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, widen(from + i));
  if (i < n) store(to + i, widen_first(from + i, n - i));
}
void widen_single(DType dtype, const void* from, std::int64_t n, float* to) {
  switch (dtype) {
    case DType::f16: return widen_as(static_cast<const cpu::F16*>(from), n, to);
    case DType::bf16: return widen_as(static_cast<const cpu::Bf16*>(from), n, to);
    default: return widen_as(static_cast<const float*>(from), n, to);
  }
}

// All bits of the first n lanes; none if n <= 0.
[[gnu::always_inline]] inline Vec first_lanes(std::int64_t n) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<std::int32_t>(n)), lanes));
}
// acc + x * values at the eight elements from `at` on, of which the first n count. All eight must be stored.
template <class T>
[[gnu::always_inline]] inline Vec add_first(Vec acc, const CsrView& w, const T* values, const float* x,
                                            std::int64_t at, std::int64_t n) {
  const Vec inside = first_lanes(n);  // elements past n may be NaN, in x and in W
  return fma(acc, _mm256_and_ps(picked(x, w.col + at), inside), _mm256_and_ps(widen(values + at), inside));
}

// Sums a row from i on, advancing i, until one chain of additions is long enough for the rest (chain-inl.h).
template <class T>
[[gnu::noinline]] Vec begin_of_long_row(const CsrView& w, const T* values, const float* x, std::int64_t& i,
                                        std::int64_t end) {
  Vec sum = zero();
  std::int64_t at = i;
  while (end - at > kLanes * kLongestChain) {
    Vec part = zero();
    for (const std::int64_t stop = at + kLanes * kLongestChain; at < stop; at += kLanes)
      part = fma(part, picked(x, w.col + at), widen(values + at));
    sum = sum + part;
  }
  i = at;
  return sum;
}

// The sum of a row, before its lanes are added up.
template <class T>
[[gnu::always_inline]] inline Vec single_row(const CsrView& w, const T* values, const float* x,
                                             std::int64_t row) {
  const std::int64_t end = w.crow[row + 1];
  std::int64_t i = w.crow[row];
  Vec acc = zero();
  if (end - i > kLanes * kLongestChain) [[unlikely]]
    acc = begin_of_long_row(w, values, x, i, end);
  for (; i + kLanes <= end; i += kLanes) acc = fma(acc, picked(x, w.col + i), widen(values + i));
  // A loop over the rest would end at another place in each row, which the branch predictor cannot foresee.
  if (i + kLanes <= w.stored) return add_first(acc, w, values, x, i, end - i);
  __m128 rest = _mm_setzero_ps(), last = rest;
  if (i + 4 <= end) {
    rest = _mm_mul_ps(picked4(x, w.col + i), widen4(values + i));
    i += 4;
  }
  for (; i < end; ++i) last = _mm_fmadd_ss(_mm_load_ss(x + w.col[i]), widen1(values + i), last);
  return acc + _mm256_zextps128_ps256(_mm_add_ps(rest, last));
}

// Rows whose products may precede their sums: if rows are short, a branch that depends on the length of one
// costs more than its elements.
constexpr std::int64_t kBatch = 16, kShort = 48, kMean = 28;
static_assert(cpu::kLineCells % kBatch == 0, "the division of rows into tasks must not change their sums");
struct Products {
  alignas(64) float of[kBatch * kMean + kLanes + kShort];
};
// From kShort - n on, the bits of the first n lanes.
struct Inside {
  std::int32_t bits[2 * kShort] = {};
  constexpr Inside() {
    for (int i = 0; i < kShort; ++i) bits[i] = -1;
  }
};
alignas(64) constexpr Inside kInside;

// x * values at all elements of the rows [row, row + kBatch), contiguous as they are stored. Returns false if
// there are too many, and at W's end.
template <class T>
[[gnu::always_inline]] inline bool multiply(const CsrView& w, const T* values, const float* x,
                                            std::int64_t row, Products& products) {
  const std::int64_t first = w.crow[row], total = w.crow[row + kBatch] - first;
  if (total > kBatch * kMean || first + core::round_up(total, kLanes) > w.stored) return false;
  std::int64_t i = 0;
  for (; i < total; i += kLanes)
    store(products.of + i, _mm256_mul_ps(picked(x, w.col + first + i), widen(values + first + i)));
  for (std::int64_t behind = 0; behind < kShort; behind += kLanes) store(products.of + i + behind, zero());
  return true;
}

// The sums of eight rows of `products`, of the elements from `first` on; false if one is longer than kShort.
[[gnu::always_inline]] inline bool short_rows(const std::int32_t* crow, std::int64_t first,
                                              const Products& products, Vec (&sums)[kLanes]) {
  const __m256i begin = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(crow)),
                end = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(crow + 1));
  const __m256i length = _mm256_sub_epi32(end, begin);
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(length), _mm256_extracti128_si256(length, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  const std::int64_t longest = _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
  if (longest > kShort) return false;
  const auto add = [&](std::int64_t i, bool begins) __attribute__((always_inline)) {
    unroll<kLanes>(SPARSELOOM_UNROLLED(r) {
      const std::int64_t at = crow[r.value] - first + i;
      const std::int32_t* const inside = kInside.bits + kShort - (crow[r.value + 1] - crow[r.value]) + i;
      // Elements past the row may be NaN.
      const Vec own = _mm256_and_ps(load(products.of + at), load(reinterpret_cast<const float*>(inside)));
      sums[r.value] = begins ? own : sums[r.value] + own;
    });
  };
  add(0, true);
  for (std::int64_t i = kLanes; i < longest; i += kLanes) add(i, false);
  return true;
}

template <class T>
void forward_single_as(const cpu::SingleJob& job, std::int64_t begin, std::int64_t end) {
  const MatmulArgs& args = job.args;
  const T* const values = static_cast<const T*>(args.values);
  Products products;
  bool multiplied = false;
  for (std::int64_t row = begin; row < end; row += kLanes) {
    const std::int64_t rows = std::min<std::int64_t>(kLanes, end - row);
    if ((row - begin) % kBatch == 0)
      multiplied = end - row >= kBatch && multiply(job.w, values, job.a, row, products);
    alignas(64) float lanes[kLanes * kLanes];
    Vec sums[kLanes];
    const std::int64_t first = job.w.crow[row - (row - begin) % kBatch];
    if (!multiplied || !short_rows(job.w.crow + row, first, products, sums)) {
      for (std::int64_t r = 0; r < rows; ++r)
        store(lanes + r * kLanes, single_row(job.w, values, job.a, row + r));
      unroll<kLanes>(SPARSELOOM_UNROLLED(r) {
        sums[r.value] = r.value < rows ? load(lanes + r.value * kLanes) : zero();
      });
    }
    Vec sum = sum_lanes(sums);
    if (args.activation != Activation::none) {  // a tile of which only the first token is valid
      unroll<kLanes>(SPARSELOOM_UNROLLED(r) { store(lanes + r.value * kLanes, sum); });
      alignas(64) float tile[kLanes * kLanes];
      for (std::int64_t r = 0; r < kLanes; ++r) tile[r * kLanes] = lanes[r];
      const auto at = [&](const void* base) {
        return base == nullptr ? nullptr : static_cast<const T*>(base) + row;
      };
      cpu::write_tile({tile, kLanes, 1, rows, args.dtype, args.activation, at(args.bias),
                       static_cast<T*>(args.out) + row, args.out_stride, nullptr, at(args.residual),
                       args.residual_stride});
      continue;
    }
    if (args.bias != nullptr) sum = sum + widen_first(static_cast<const T*>(args.bias) + row, rows);
    if (args.residual != nullptr) sum = sum + widen_first(static_cast<const T*>(args.residual) + row, rows);
    narrow_first(static_cast<T*>(args.out) + row, sum, rows);
  }
}

template <class T>
void dx_single_as(const cpu::SingleJob& job, std::int64_t chunk, std::int64_t begin, std::int64_t end) {
  const CsrView& w = job.w;
  const std::int64_t size = core::round_up(w.cols, cpu::kLineCells);
  float* const sums = job.sums + chunk * job.sides * size;
  const T* const values = static_cast<const T*>(job.args.values);
  alignas(64) float products[kLanes];
  add_rows(
      job, sums, size, begin, end, [&](std::int64_t row) __attribute__((always_inline)) {
        const Vec dy = splat(job.a + row);
        const std::int64_t last = w.crow[row + 1];
        std::int64_t i = w.crow[row];
        for (; i + kLanes <= last; i += kLanes) {
          store(products, fma(zero(), dy, widen(values + i)));
          for (std::int64_t e = 0; e < kLanes; ++e) sums[w.col[i + e]] += products[e];
        }
        if (i < last) store(products, fma(zero(), dy, widen_first(values + i, last - i)));
        for (std::int64_t e = 0; i + e < last; ++e) sums[w.col[i + e]] += products[e];
      });
}

template <class T>
void write_dx_single_as(const cpu::SingleJob& job, std::int64_t begin, std::int64_t end) {
  const std::int64_t size = core::round_up(job.w.cols, cpu::kLineCells);
  for (std::int64_t i = begin; i < end; i += kLanes) {
    Vec sum = load(job.sums + i);
    for (std::int64_t chunk = 1; chunk < job.chunks; ++chunk)
      sum = sum + load(job.sums + chunk * job.sides * size + i);
    T* const out = static_cast<T*>(job.args.out) + i;
    if (end - i >= kLanes)
      narrow(out, sum);
    else
      narrow_first(out, sum, end - i);
  }
}

template <class T>
void dw_single_as(const cpu::SingleJob& job, std::int64_t begin, std::int64_t end) {
  const CsrView& w = job.w;
  const auto write = [&](auto* out) __attribute__((always_inline)) {
    for (std::int64_t row = begin; row < end; ++row) {
      const Vec dy = splat(job.a + row);
      const std::int64_t last = w.crow[row + 1];
      for (std::int64_t i = w.crow[row]; i < last; i += kLanes) {
        const std::int64_t n = std::min<std::int64_t>(kLanes, last - i);
        const Vec x = n == kLanes ? picked(job.b, w.col + i) : picked_first(job.b, w.col + i, n);
        const Vec before = job.args.accumulate ? widen_first(out + i, n) : zero();
        if (n == kLanes)
          narrow(out + i, fma(before, x, dy));
        else
          narrow_first(out + i, fma(before, x, dy), n);
      }
    }
  };
  if (job.args.accumulate)
    write(static_cast<float*>(job.args.out));
  else
    write(static_cast<T*>(job.args.out));
}

#define SPARSELOOM_BY_DTYPE(function, ...)                          \
  switch (job.args.dtype) {                                         \
    case DType::f16: return function<cpu::F16>(job, __VA_ARGS__);   \
    case DType::bf16: return function<cpu::Bf16>(job, __VA_ARGS__); \
    default: return function<float>(job, __VA_ARGS__);              \
  }
void forward_single(const cpu::SingleJob& job, std::int64_t begin, std::int64_t end) {
  SPARSELOOM_BY_DTYPE(forward_single_as, begin, end)
}
void dx_single(const cpu::SingleJob& job, std::int64_t chunk, std::int64_t begin, std::int64_t end) {
  SPARSELOOM_BY_DTYPE(dx_single_as, chunk, begin, end)
}
void write_dx_single(const cpu::SingleJob& job, std::int64_t begin, std::int64_t end) {
  SPARSELOOM_BY_DTYPE(write_dx_single_as, begin, end)
}
void dw_single(const cpu::SingleJob& job, std::int64_t begin, std::int64_t end) {
  SPARSELOOM_BY_DTYPE(dw_single_as, begin, end)
}
#undef SPARSELOOM_BY_DTYPE
