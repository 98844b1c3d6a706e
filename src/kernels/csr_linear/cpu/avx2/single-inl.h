// The single kernel. Included inside AVX2's region, after vector.h.

// x at four columns, which are loaded two at a time.
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

// The sum of a row, before its lanes are added.
template <class T>
[[gnu::always_inline]] inline Vec single_row(const CsrView& w, const T* values, const float* x,
                                             std::int64_t row) {
  const std::int64_t end = w.crow[row + 1];
  std::int64_t i = w.crow[row];
  Vec acc = zero();
  for (; i + kLanes <= end; i += kLanes) acc = fma(acc, picked(x, w.col + i), widen(values + i));
  // Rows are often shorter than a vector, so their ends stay in registers too.
  __m128 rest = _mm_setzero_ps(), last = rest;
  if (i + 4 <= end) {
    rest = _mm_mul_ps(picked4(x, w.col + i), widen4(values + i));
    i += 4;
  }
  for (; i < end; ++i) last = _mm_fmadd_ss(_mm_load_ss(x + w.col[i]), widen1(values + i), last);
  return acc + _mm256_zextps128_ps256(_mm_add_ps(rest, last));
}

template <class T>
void forward_single_as(const cpu::SingleJob& job, std::int64_t begin, std::int64_t end) {
  const MatmulArgs& args = job.args;
  const T* const values = static_cast<const T*>(args.values);
  for (std::int64_t row = begin; row < end; row += kLanes) {
    const std::int64_t rows = std::min<std::int64_t>(kLanes, end - row);
    alignas(64) float lanes[kLanes * kLanes];
    for (std::int64_t r = 0; r < rows; ++r)
      store(lanes + r * kLanes, single_row(job.w, values, job.a, row + r));
    Vec sums[kLanes];
    unroll<kLanes>(
        SPARSELOOM_UNROLLED(r) { sums[r.value] = r.value < rows ? load(lanes + r.value * kLanes) : zero(); });
    Vec sum = sum_lanes(sums);
    if (args.activation != Activation::none) {  // a tile whose first token alone is valid
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
  float* const sums = job.sums + chunk * size;
  const T* const values = static_cast<const T*>(job.args.values);
  std::fill_n(sums, size, 0.0f);
  alignas(64) float products[kLanes];
  for (std::int64_t row = begin; row < end; ++row) {
    const Vec dy = splat(job.a + row);
    const std::int64_t last = w.crow[row + 1];
    std::int64_t i = w.crow[row];
    for (; i + kLanes <= last; i += kLanes) {
      store(products, fma(zero(), dy, widen(values + i)));
      for (std::int64_t e = 0; e < kLanes; ++e) sums[w.col[i + e]] += products[e];
    }
    if (i < last) store(products, fma(zero(), dy, widen_first(values + i, last - i)));
    for (std::int64_t e = 0; i + e < last; ++e) sums[w.col[i + e]] += products[e];
  }
}

template <class T>
void write_dx_single_as(const cpu::SingleJob& job, std::int64_t begin, std::int64_t end) {
  const std::int64_t size = core::round_up(job.w.cols, cpu::kLineCells);
  for (std::int64_t i = begin; i < end; i += kLanes) {
    Vec sum = load(job.sums + i);
    for (std::int64_t chunk = 1; chunk < job.chunks; ++chunk) sum = sum + load(job.sums + chunk * size + i);
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
