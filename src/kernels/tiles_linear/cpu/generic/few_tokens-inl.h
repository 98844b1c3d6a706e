// Few tokens, with columns on the lanes: with tokens there most lanes would be idle. Included inside an
// instruction set's region, after units-inl.h, strip_of-inl.h and lanes_of_pairs.h.

constexpr auto kColumnsOf = cpu::columns_of_pairs();

// Forward of one token: the strip's rows have sums of eight lanes each. Of a 2:4 unit the columns of the
// stored elements are selected, so that only those are multiplied.
template <class T>
class Dots {
 public:
  Dots(const cpu::PanelJob& job, std::int64_t token)
      : x_(static_cast<const T*>(job.in) + token * job.in_stride), depth_(job.depth) {
    unroll<cpu::kGroup>(SPARSELOOM_UNROLLED(o) { recent_[o.value] = total_[o.value] = all8(0); });
  }
  // w: eight rows of the unit at `place` along the depth, `stride` apart.
  [[gnu::always_inline]] void add(const float* w, std::int64_t stride, std::int64_t place) {
    Vec8 acc[cpu::kGroup];
    unroll<cpu::kGroup>(SPARSELOOM_UNROLLED(o) { acc[o.value] = recent_[o.value]; });
    const float* above = w + 4 * stride;
    asm volatile("" : "+r"(above));  // as in multiply_eight
    for (std::int64_t k = place * kSide, end = k + kSide; k < end; k += 8, w += 8, above += 8) {
      const Vec8 token = x(k);
      unroll<4>(SPARSELOOM_UNROLLED(o) {
        acc[o.value] = mul_add(token, load8(w + o.value * stride), acc[o.value]);
        acc[o.value + 4] = mul_add(token, load8(above + o.value * stride), acc[o.value + 4]);
      });
    }
    unroll<cpu::kGroup>(SPARSELOOM_UNROLLED(o) { recent_[o.value] = acc[o.value]; });
    added();
  }
  [[gnu::always_inline]] void add_half(const float* values, std::int64_t stride,
                                       const std::uint8_t* positions, std::int64_t position_stride,
                                       std::int64_t place) {
    constexpr int kBytes = kSide / 8;
    Vec8 token[kBytes];
    unroll<kBytes>(SPARSELOOM_UNROLLED(j) { token[j.value] = x(place * kSide + 8 * j.value); });
    for (int o = 0; o < cpu::kGroup; ++o, values += stride, positions += position_stride) {
      std::uint64_t bytes;
      std::memcpy(&bytes, positions, kBytes);
      __m128 acc[2] = {_mm_setzero_ps(), _mm_setzero_ps()};
      unroll<kBytes>(SPARSELOOM_UNROLLED(j) {
        const std::int32_t* const columns = kColumnsOf[bytes >> 8 * j.value & 255u].data();
        const __m256i at =
            _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(columns)));
        const __m128 stored = _mm256_castps256_ps128(_mm256_permutevar8x32_ps(token[j.value], at));
        acc[j.value % 2] = _mm_fmadd_ps(stored, _mm_loadu_ps(values + 4 * j.value), acc[j.value % 2]);
      });
      recent_[o] = recent_[o] + _mm256_zextps128_ps256(acc[0] + acc[1]);
    }
    added();
  }
  // Writes the sums as those of the strip's first token.
  void end(float* tile) {
    set_aside();
    for (std::int64_t o = 0; o < cpu::kGroup; ++o) tile[o * kLanes] = sum8(total_[o]);
  }

 private:
  static constexpr int kTimes = 16;
  static Vec8 load8(const float* p) { return widen8(static_cast<const cpu::Cell*>(p)); }
  [[gnu::always_inline]] Vec8 x(std::int64_t k) const {
    return k + 8 <= depth_ ? widen8(x_ + k) : widen8_first(x_ + k, std::max<std::int64_t>(0, depth_ - k));
  }
  void added() {
    if (++times_ == kTimes) set_aside();
  }
  void set_aside() {
    unroll<cpu::kGroup>(SPARSELOOM_UNROLLED(o) {
      total_[o.value] = total_[o.value] + recent_[o.value], recent_[o.value] = all8(0);
    });
    times_ = 0;
  }
  const T* x_;
  std::int64_t depth_;
  Vec8 recent_[cpu::kGroup], total_[cpu::kGroup];
  int times_ = 0;
};

// dX of few tokens: the strip's eight columns are the lanes, and a row of W is multiplied by a number of dY
// of each token. With tokens on the lanes most of them would be idle.
constexpr int kFewTokens = 4;
template <int kTokens, class T>
[[gnu::always_inline]] inline void sum_columns(const cpu::PanelJob& job, const cpu::Strip& s, float* tile) {
  constexpr int kChains = kTokens <= 2 ? 4 : 2;  // of additions, which hide their latency
  const std::int64_t block = s.output / kSide, column = s.output % kSide;
  const std::int32_t *const begin = job.slot + job.begin[block], *const end = job.slot + job.end[block];
  Vec8 recent[kTokens], total[kTokens];
  unroll<kTokens>(SPARSELOOM_UNROLLED(t) { recent[t.value] = total[t.value] = all8(0); });
  const auto add = [&](auto half, const Unit<T>& unit, const Unit<T>& next, const float* dy)
      __attribute__((always_inline)) {
    Vec8 acc[kChains][kTokens];
    unroll<kChains * kTokens>(
        SPARSELOOM_UNROLLED(i) { acc[i.value / kTokens][i.value % kTokens] = all8(0); });
    // Adjacent strips share cache lines.
    const bool asks = column % ((next.half ? 128 : 64) / static_cast<std::int64_t>(sizeof(T))) == 0;
    const T* values = unit.values + (half.value ? column / 2 : column);
    const std::uint8_t* positions = half.value ? unit.positions + column / 8 : nullptr;
    for (std::int64_t r = 0; r < kSide; r += kChains) {
      unroll<kChains>(SPARSELOOM_UNROLLED(c) {
        if (asks) ask_row<3>(next, r + c.value, column, cpu::kGroup);
        Vec8 weights;
        if constexpr (half.value)
          weights = strip_of<true>(values, *positions), positions += unit.position_stride;
        else
          weights = widen8(values);
        values += unit.stride;
        unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
          Vec8& sum = acc[c.value][t.value];
          sum = mul_add(weights, all8(dy[(r + c.value) * kLanes + t.value]), sum);
        });
      });
    }
    unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
      Vec8 sum = acc[0][t.value] + acc[1][t.value];
      if constexpr (kChains == 4) sum = sum + (acc[2][t.value] + acc[3][t.value]);
      recent[t.value] = recent[t.value] + sum;
    });
  };
  const auto set_recent_aside = [&]() __attribute__((always_inline)) {
    unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
      total[t.value] = total[t.value] + recent[t.value], recent[t.value] = all8(0);
    });
  };
  constexpr std::int64_t kAhead = 3, kTimes = 32;  // units
  for (const std::int32_t* entry = begin; entry < end; ++entry) {
    const Unit<T> unit(job, *entry, 0), next(job, entry[std::min(kAhead, end - 1 - entry)], 0);
    const float* const dy = s.panel + job.depth_index[entry - job.slot] * kSide * kLanes;
    if (unit.half)
      add(std::true_type{}, unit, next, dy);
    else
      add(std::false_type{}, unit, next, dy);
    if ((entry - begin) % kTimes == kTimes - 1) set_recent_aside();
  }
  set_recent_aside();
  for (std::int64_t i = 0; i < cpu::kGroup * kLanes; i += kLanes) store(tile + i, zero());
  unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
    float sums[cpu::kGroup];
    narrow8(sums, total[t.value]);
    for (int o = 0; o < cpu::kGroup; ++o) tile[o * kLanes + t.value] = sums[o];
  });
}
