// The Way of fp32: one column a lane. Included after an instruction set's expanded() and masked().

template <class T>
struct Lanes : Floats {
  using Value = T;
  using X = float;
  static constexpr int kColumns = kLanes, kCellRows = 1;
  [[gnu::always_inline]] static Vec weights(const T* p, unsigned bits) { return expanded(p, bits); }
  [[gnu::always_inline]] static Vec kept(Vec x, unsigned bits) { return masked(x, bits); }
  [[gnu::always_inline]] static Vec step(Vec sums, Vec x, Vec w) { return fma(sums, x, w); }
  [[gnu::always_inline]] static Vec splat_one(const float* dy) { return splat(dy); }
};

template <class T>
bool widen_as(const void* from, std::int64_t n, std::int64_t room, void* widened) {
  const T* const values = static_cast<const T*>(from);
  float* const to = static_cast<float*>(widened);
  Vec none = zero();  // 0 x is NaN unless x is finite
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec x = widen(values + i);
    none = fma(none, x, zero());
    store(to + i, x);
  }
  for (; i < room; i += kLanes) {
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
bool widen_bitmap(DType dtype, const void* from, std::int64_t n, std::int64_t room, void* to) {
  SPARSELOOM_BY_DTYPE(dtype, widen_as, from, n, room, to)
}
#undef SPARSELOOM_BY_DTYPE
