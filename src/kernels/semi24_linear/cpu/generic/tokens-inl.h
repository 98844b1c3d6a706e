// Tokens on the lanes: how the kernels pack their operand, and a row's values in fp32. Included inside
// an instruction set's region, after chain-inl.h.

/// The values of a row's groups in fp32: themselves, or widened into `wide`.
template <class T>
[[gnu::always_inline]] inline const float* in_fp32(const T* values, std::int64_t count, float* wide) {
  if constexpr (std::is_same_v<T, float>) {
    return values;
  } else {
    for (std::int64_t i = 0; i < count; i += kLanes)
      avx2::store(wide + i, i + kLanes <= count ? widen(values + i) : widen_first(values + i, count - i));
    return wide;
  }
}

/// Writes the features [begin, end) of `args.a` [m, features] as fp32 to [panels][depth][vectors * kLanes
/// tokens], zero past the last token and past the last feature. begin is a multiple of kLanes; end may be
/// past depth.
template <class T>
void pack_tokens(const MatmulArgs& args, std::int64_t features, std::int64_t depth, std::int64_t vectors,
                 std::int64_t begin, std::int64_t end, float* out) {
  end = std::min(end, depth);
  for (std::int64_t token = 0; token < core::round_up(args.m, vectors * kLanes); token += kLanes) {
    const std::int64_t tokens = args.m - token, vector = token / kLanes;
    const T* const from = static_cast<const T*>(args.a) + token * args.a_stride;
    float* const to = out + (vector / vectors * depth * vectors + vector % vectors) * kLanes;
    for (std::int64_t k = begin; k < end; k += kLanes) {
      const std::int64_t count = std::clamp<std::int64_t>(features - k, 0, kLanes);
      Vec lanes[kLanes];
      for (std::int64_t t = 0; t < kLanes; ++t)
        lanes[t] = t >= tokens       ? zero()
                   : count == kLanes ? widen(from + t * args.a_stride + k)
                                     : widen_first(from + t * args.a_stride + k, count);
      transpose(lanes);
      for (std::int64_t i = 0; i < std::min<std::int64_t>(kLanes, end - k); ++i)
        avx2::store(to + (k + i) * vectors * kLanes, lanes[i]);
    }
  }
}

/// Calls body(row) for each block of rows of W, which adds once to each of sums [floats], zero at first. More
/// than kLongestChain additions are set aside in total [floats].
template <class Body>
void in_blocks(std::int64_t rows, std::int64_t block, std::int64_t floats, float* sums, float* total,
               const Body& body) {
  const std::int64_t most = kLongestChain * block;
  std::fill_n(sums, floats, 0.0f);
  for (std::int64_t row = 0; row < rows; row += block) {
    if (row > 0 && row % most == 0)
      for (std::int64_t i = 0; i < floats; i += kLanes) {
        const Vec sum = avx2::load(sums + i);
        avx2::store(total + i, row == most ? sum : avx2::load(total + i) + sum);
        avx2::store(sums + i, zero());
      }
    body(row);
  }
  if (rows > most)
    for (std::int64_t i = 0; i < floats; i += kLanes)
      avx2::store(sums + i, avx2::load(total + i) + avx2::load(sums + i));
}
