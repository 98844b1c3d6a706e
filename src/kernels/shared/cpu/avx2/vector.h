// The full vector of AVX2, which is the one of eight lanes. Included inside a region, after simd.h.

using Vec = Vec8;
constexpr int kLanes = 8;
constexpr int kTileOutputs = 4;  // 4 x 3 accumulators, 3 inputs and 1 broadcast: all 16 registers
constexpr int kRegisters = 16;

[[gnu::always_inline]] inline Vec zero() { return _mm256_setzero_ps(); }
[[gnu::always_inline]] inline Vec load(const cpu::Cell* p) { return widen8(p); }
[[gnu::always_inline]] inline void store(cpu::Cell* p, Vec x) { narrow8(p, x); }
[[gnu::always_inline]] inline Vec splat(const cpu::Cell* p) {
  return _mm256_broadcast_ss(reinterpret_cast<const float*>(p));
}
[[gnu::always_inline]] inline Vec fma(Vec acc, Vec x, Vec w) { return _mm256_fmadd_ps(x, w, acc); }
[[gnu::always_inline]] inline void transpose(Vec (&rows)[kLanes]) { transpose8(rows); }
[[gnu::always_inline]] inline float sum(Vec x) { return sum8(x); }

// Lane i of the result is the sum of r[i]'s lanes.
[[gnu::always_inline]] inline Vec sum_lanes(const Vec (&r)[kLanes]) {
  const Vec low = _mm256_hadd_ps(_mm256_hadd_ps(r[0], r[1]), _mm256_hadd_ps(r[2], r[3]));
  const Vec high = _mm256_hadd_ps(_mm256_hadd_ps(r[4], r[5]), _mm256_hadd_ps(r[6], r[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
}

template <class T>
[[gnu::always_inline]] inline Vec widen(const T* p) {
  return widen8(p);
}
template <class T>
[[gnu::always_inline]] inline Vec widen_first(const T* p, std::int64_t n) {
  return widen8_first(p, n);
}
template <class T>
[[gnu::always_inline]] inline void narrow(T* p, Vec x) {
  narrow8(p, x);
}
template <class T>
[[gnu::always_inline]] inline void narrow_first(T* p, Vec x, std::int64_t n) {
  narrow8_first(p, x, n);
}
