// The products of a row of W and tokens on the lanes. Included inside an instruction set's region, after
// chain-inl.h.

// Adds the groups [0, groups) of a row to its sums [kVectors][lanes]. x: the first group's columns. Each
// block's sums begin at zero, which keeps the chains of additions short (chain-inl.h).
template <int kVectors>
[[gnu::always_inline]] inline void add_row(const float* values, const std::uint8_t* positions,
                                           std::int64_t groups, const float* x, float* sums) {
  constexpr std::int64_t kTokens = kVectors * kLanes;
  // An addition waits four cycles for the previous one to the same sum: few vectors have two sums each.
  constexpr int kSums = kVectors <= 6 ? 2 : 1;
  Vec acc[kSums][kVectors];
  unroll<kSums>(SPARSELOOM_UNROLLED(s) {
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) { acc[s.value][v.value] = zero(); });
  });
  const auto group = [&](unsigned bits, const float* value, const float* columns)
      __attribute__((always_inline)) {
    unroll<2>(SPARSELOOM_UNROLLED(e) {
      const float* const column = columns + (bits >> 2 * e.value & 3u) * kTokens;
      const Vec weight = splat(value + e.value);
      unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
        Vec& sum = acc[e.value % kSums][v.value];
        sum = fma(sum, load(column + v.value * kLanes), weight);
      });
    });
  };
  std::int64_t g = 0;
  for (; g + 2 <= groups; g += 2, values += 4, x += 8 * kTokens) {
    const unsigned both = *positions++;
    group(both, values, x);
    group(both >> 4, values + 2, x + 4 * kTokens);
  }
  if (g < groups) group(*positions, values, x);
  unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
    Vec sum = acc[0][v.value];
    if constexpr (kSums == 2) sum = sum + acc[1][v.value];
    float* const at = sums + v.value * kLanes;
    store(at, load(at) + sum);
  });
}
