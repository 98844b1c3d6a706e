// Rows to int8. Included inside an instruction set's region, after:
//
//   kRounded                        lanes of fp32
//   widen(p), times(x, factor)      so many elements as fp32, and their products
//   put(p, x)                       so many int8, to nearest even, of numbers within -127 .. 127
//   clipped(x)                      those of any numbers, and 0 for a NaN
//   Bits                            a vector of bits, with magnitude_bits<T>(p), larger_bits<T>(a, b)

// The largest |x| of a row. As whole numbers the bits of Inf come after those of numbers, and a NaN's after
// them, so either is found.
template <class T, class Whole>
float largest_of(const T* row, std::int64_t n) {
  constexpr std::int64_t kCount = sizeof(Bits) / sizeof(T);
  constexpr Whole kMagnitude = static_cast<Whole>(~Whole{0}) >> 1;
  Bits most{};
  std::int64_t c = 0;
  for (; c + kCount <= n; c += kCount) most = larger_bits<T>(most, magnitude_bits<T>(row + c));
  Whole each[kCount], largest = 0;
  std::memcpy(each, &most, sizeof most);
  for (const Whole bits : each) largest = std::max(largest, bits);
  for (; c < n; ++c) {
    Whole bits;
    std::memcpy(&bits, row + c, sizeof bits);
    largest = std::max(largest, static_cast<Whole>(bits & kMagnitude));
  }
  T found;
  std::memcpy(static_cast<void*>(&found), &largest, sizeof found);
  return cpu::as_f32(found);
}

// kGiven: the factor is given. A row's own lets nothing exceed 127, and a NaN is in no row that has an
// inverse.
template <class T, class Whole, bool kGiven>
void round_rows_of(const cpu::RoundRows& call, std::int64_t begin, std::int64_t end) {
  const std::int64_t n = call.x.cols, whole = n / kRounded * kRounded;
  for (std::int64_t r = begin; r < end; ++r) {
    const T* const row = static_cast<const T*>(call.x.data) + r * call.x.stride;
    std::int8_t* const out = call.out.values + r * n;  // x and out may be null if n is 0
    const float scale = kGiven ? *call.given : largest_of<T, Whole>(row, n) / cpu::kMostInt8;
    if (!kGiven) call.out.scale[r] = scale;
    const float inverse = cpu::inverse_of(scale);
    if (inverse == 0) {
      std::fill_n(out, n, std::int8_t{0});
      continue;
    }
    const auto quotients = [&](const T* at) __attribute__((always_inline)) {
      const auto x = times(widen(at), inverse);
      if constexpr (kGiven) return clipped(x);
      return x;
    };
    for (std::int64_t c = 0; c < whole; c += kRounded) put(out + c, quotients(row + c));
    if (whole == n) continue;
    T padded[kRounded] = {};
    std::int8_t rounded[kRounded];
    const auto left = static_cast<std::size_t>(n - whole);
    std::memcpy(static_cast<void*>(padded), static_cast<const void*>(row + whole), left * sizeof(T));
    put(rounded, quotients(padded));
    std::memcpy(out + whole, rounded, left);
  }
}

template <class T, class Whole>
void round_rows_as(const cpu::RoundRows& call, std::int64_t begin, std::int64_t end) {
  call.given ? round_rows_of<T, Whole, true>(call, begin, end)
             : round_rows_of<T, Whole, false>(call, begin, end);
}

void round_rows(const cpu::RoundRows& call, std::int64_t begin, std::int64_t end) {
  switch (call.x.dtype) {
    case DType::f32: return round_rows_as<cpu::Cell, std::uint32_t>(call, begin, end);
    case DType::f16: return round_rows_as<cpu::F16, std::uint16_t>(call, begin, end);
    default: return round_rows_as<cpu::Bf16, std::uint16_t>(call, begin, end);
  }
}
