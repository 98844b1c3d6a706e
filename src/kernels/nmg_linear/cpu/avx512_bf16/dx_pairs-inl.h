// dX of the grouped kernels by VDPBF16PS: pairs of outputs. Included inside the instruction set's region,
// after dx-inl.h. A row of dY has cells of two tokens, lanes apart, as dW's operands have.

// Adds the products of an even number of outputs of a pattern to the sums of its inputs. A pair of rows is
// unpacked once for all inputs; `values` are pairs of two outputs for each input.
template <int kPlaces, int kVectors>
void add_pairs_of_outputs(const float* dy, const std::int16_t* order, std::int64_t outputs,
                          const float* values, const std::uint8_t* places, float* sums) {
  constexpr std::int64_t kCells = kVectors * kLanes;
  constexpr int kChains = std::max(1, 8 / (kPlaces * 2 * kVectors));
  ChainedSums<kChains, kPlaces, 2 * kVectors> of;
  const auto add = [&](auto c, std::int64_t j) __attribute__((always_inline)) {
    const float *const one = dy + order[j] * kCells, *const other = dy + order[j + 1] * kCells;
    Vec weights[kPlaces];
    unroll<kPlaces>(SPARSELOOM_UNROLLED(i) { weights[i.value] = splat(values + j / 2 * kPlaces + i.value); });
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
      const __m512i a = _mm512_loadu_si512(one + v.value * kLanes),
                    b = _mm512_loadu_si512(other + v.value * kLanes);
      const auto low = (__m512bh)_mm512_unpacklo_epi16(a, b), high = (__m512bh)_mm512_unpackhi_epi16(a, b);
      unroll<kPlaces>(SPARSELOOM_UNROLLED(i) {
        Vec(&acc)[2 * kVectors] = of.acc[c.value][i.value];
        const auto weight = (__m512bh)(weights[i.value]);
        acc[2 * v.value] = _mm512_dpbf16_ps(acc[2 * v.value], low, weight);
        acc[2 * v.value + 1] = _mm512_dpbf16_ps(acc[2 * v.value + 1], high, weight);
      });
    });
  };
  of.template for_outputs<2>(outputs, add);
  of.add_to(sums, places);
}

template <int kVectors>
void add_chunk_of_pairs(const NmgView& w, const float* dy, const float* values, const std::int16_t* order,
                        float* sums) {
  const auto add = w.n == 1 ? add_pairs_of_outputs<1, kVectors> : add_pairs_of_outputs<2, kVectors>;
  const std::uint8_t* places = w.places;
  for (std::int64_t p = 0; p < w.patterns; ++p, places += w.n, order += w.g, values += w.g * w.n / 2)
    for (std::int64_t j = 0; j < w.g; j += cpu::kOutputsAtOnce)
      add(dy, order + j, std::min(cpu::kOutputsAtOnce, w.g - j), values + j * w.n / 2, places, sums);
}

struct PairSums {
  static constexpr std::int64_t kTokensOfCell = 2;

  // Of one input the values of two outputs are neighbours; of two inputs the inner two of four are swapped.
  static const float* values(const NmgView& w, const cpu::Bf16* stored, float* pairs) {
    if (w.n == 1) return reinterpret_cast<const float*>(stored);
    const std::int64_t each = w.chunk_rows() * w.n;
    for (std::int64_t i = 0; i < each; i += 2 * kLanes) {
      const std::int64_t left = std::min<std::int64_t>(each - i, 2 * kLanes);
      const auto present = static_cast<__mmask32>((std::uint64_t{1} << left) - 1);
      const __m512i four = _mm512_maskz_loadu_epi16(present, stored + i);
      _mm512_storeu_si512(pairs + i / 2, _mm512_shufflehi_epi16(_mm512_shufflelo_epi16(four, 0xd8), 0xd8));
    }
    return pairs;
  }
  static auto adder(std::int64_t vectors) {
    return vectors == 1 ? add_chunk_of_pairs<1> : add_chunk_of_pairs<2>;
  }
  // The lanes of two vectors, unpacked from cells (t, t + 16), in the order of the tokens.
  static void finish(float* sums, std::int64_t size) {
    alignas(64) std::int32_t from[2 * kLanes];
    for (int lane = 0; lane < 2 * kLanes; ++lane) {
      const int quarter = lane % kLanes / 4, at = lane % 4;
      from[quarter * 4 + (lane >= kLanes ? 2 : 0) + at / 2 + (at % 2 ? kLanes : 0)] = lane;
    }
    const __m512i low = _mm512_load_si512(from), high = _mm512_load_si512(from + kLanes);
    for (std::int64_t i = 0; i < size; i += 2 * kLanes) {
      const Vec a = load(sums + i), b = load(sums + i + kLanes);
      store(sums + i, _mm512_permutex2var_ps(a, low, b));
      store(sums + i + kLanes, _mm512_permutex2var_ps(a, high, b));
    }
  }
};
