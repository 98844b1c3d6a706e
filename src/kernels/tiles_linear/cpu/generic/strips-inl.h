// The mainloops of tiles: dense ones by the register tile of the panel kernels, 2:4 ones by gather's rows
// (forward) or by strips' columns, which are expanded in L1 (dX). Included inside an instruction set's
// region, after panel-inl.h, add_row-inl.h and strip_of-inl.h.

// Units that are multiplied before their sums leave the registers: kChainSteps steps. X of these is read by
// all passes from L1.
constexpr int kTogether = 2;
static_assert(kTogether * kSide <= kChainSteps);

// The sums of a strip. Few units add to `recent` before it is added to the tile, else W of 131072 columns
// adds some 2000 times to one number (chain-inl.h).
template <int kVectors>
class Sums {
 public:
  explicit Sums(float* tile) : tile_(tile) {
    for (std::int64_t i = 0; i < kCount; i += kLanes) store(tile + i, zero()), store(recent_ + i, zero());
  }
  float* recent() { return recent_; }
  // After kTogether units.
  [[gnu::always_inline]] void added() {
    if (++times_ == kTimes) end();
  }
  [[gnu::always_inline]] void end() {
    for (std::int64_t i = 0; i < kCount; i += kLanes) {
      store(tile_ + i, load(tile_ + i) + load(recent_ + i));
      store(recent_ + i, zero());
    }
    times_ = 0;
  }

 private:
  static constexpr std::int64_t kCount = cpu::kGroup * kVectors * kLanes;
  static constexpr int kTimes = 16;
  alignas(64) float recent_[kCount];
  float* tile_;
  int times_ = 0;
};

// A panel of one vector has registers for all eight outputs.
template <int kVectors>
constexpr int kAtOnce = kVectors == 1 ? cpu::kGroup : kTileOutputs;

// multiply for eight outputs of one vector. The upper four have a pointer of their own: of eight offsets gcc
// keeps most in memory, which took twice the time.
[[gnu::always_inline]] inline void multiply_eight(Vec (&acc)[cpu::kGroup][1], const float*& x,
                                                  const cpu::Cell*& w, std::int64_t w_output,
                                                  std::int64_t w_step, std::int64_t steps) {
  const cpu::Cell* above = w + 4 * w_output;
  asm volatile("" : "+r"(above));
  for (std::int64_t k = 0; k < steps; ++k, x += kLanes, w += w_step, above += w_step) {
    const Vec token = load(x);
    unroll<4>(SPARSELOOM_UNROLLED(o) {
      acc[o.value][0] = fma(acc[o.value][0], token, splat(w + o.value * w_output));
      acc[o.value + 4][0] = fma(acc[o.value + 4][0], token, splat(above + o.value * w_output));
    });
  }
}

// What multiply_units multiplies of a unit: the weights of the strip's first output; null: nothing.
struct Cells {
  const cpu::Cell* w;
  std::int64_t output_stride, step_stride;
};

// Adds the products of `count` units to sums. `x`: of each unit. done(u, half, step) is called before
// kRunSteps steps of unit u for the outputs from `half` on.
template <int kVectors, class Done>
[[gnu::always_inline]] inline void multiply_units(const float* const* x, int count, const Cells* cells,
                                                  float* sums, const Done& done) {
  constexpr std::int64_t kRow = kVectors * kLanes;
  constexpr int kOutputs = kAtOnce<kVectors>;
  for (int half = 0; half < cpu::kGroup; half += kOutputs) {
    Vec acc[kOutputs][kVectors];
    unroll<kOutputs>(SPARSELOOM_UNROLLED(o) {
      unroll<kVectors>(SPARSELOOM_UNROLLED(v) { acc[o.value][v.value] = zero(); });
    });
    for (int u = 0; u < count; ++u) {
      if (cells[u].w == nullptr) continue;
      const std::int64_t output_stride = cells[u].output_stride, step_stride = cells[u].step_stride;
      const cpu::Cell* w = cells[u].w + half * output_stride;
      const float* at = x[u];
      for (std::int64_t step = 0; step < kSide; step += kRunSteps) {
        done(u, half, step);
        if constexpr (kVectors == 1)
          multiply_eight(acc, at, w, output_stride, step_stride, kRunSteps);
        else
          multiply<kVectors>(acc, at, w, output_stride, step_stride, kRunSteps);
      }
    }
    set_aside(acc, sums + half * kRow, kRow, false);
  }
}

template <class T>
struct TilesForward {
  template <int kVectors>
  [[gnu::always_inline]] static void sum(const cpu::PanelJob& job, const cpu::Strip& s, float* tile) {
    constexpr std::int64_t kRow = kVectors * kLanes;
    constexpr bool kWidens = !std::is_same_v<T, float>;
    const std::int64_t block = s.output / kSide, row = s.output % kSide;
    const std::int32_t *const begin = job.slot + job.begin[block], *const end = job.slot + job.end[block];
    const After after(job, s, cpu::kGroup);
    alignas(64) float wide[kTogether][kWidens ? cpu::kGroup * kSide : 1];
    Sums<kVectors> sums(tile);
    const bool one = kVectors == 1 && s.tokens == 1;
    [[maybe_unused]] Dots<T> dots(job, s.token);
    for (const std::int32_t* entry = begin; entry < end; entry += kTogether) {
      const int count = static_cast<int>(std::min<std::int64_t>(kTogether, end - entry));
      Cells cells[kTogether] = {};
      const float* x[kTogether] = {};
      bool dense = false;
      // Row r of the units after these.
      const auto ask = [&](int u, std::int64_t r) __attribute__((always_inline)) {
        if (entry + kTogether + u < end) ask_row<3>(Unit<T>(job, entry[kTogether + u], row), r, 0, kSide);
        const std::int64_t ahead = entry + u - begin;
        if (ahead < after.end - after.entry)
          ask_row<2>(Unit<T>(job, after.entry[ahead], after.output), r, 0, kSide);
      };
      for (int u = 0; u < count; ++u) {
        x[u] = s.panel + job.depth_index[entry + u - job.slot] * kSide * kRow;
        const Unit<T> unit(job, entry[u], row);
        const std::int64_t width = unit.half ? kSide / 2 : kSide;
        const float* values = wide[u];
        std::int64_t stride = width;
        if constexpr (kWidens) {
          for (std::int64_t r = 0; r < cpu::kGroup; ++r)
            for (std::int64_t i = 0; i < width; i += kLanes)
              store(wide[u] + r * width + i, widen(unit.values + r * unit.stride + i));
        } else {
          values = unit.values, stride = unit.stride;
        }
        if (one) {
          const std::int64_t place = job.depth_index[entry + u - job.slot];
          for (std::int64_t r = 0; r < cpu::kGroup; ++r) ask(u, r);
          if (unit.half)
            dots.add_half(values, stride, unit.positions, unit.position_stride, place);
          else
            dots.add(values, stride, place);
          continue;
        }
        if (!unit.half) {
          cells[u] = {values, stride, 1}, dense = true;
          continue;
        }
        for (std::int64_t r = 0; r < cpu::kGroup; ++r) {
          ask(u, r);
          add_row<kVectors>(values + r * stride, unit.positions + r * unit.position_stride, kSide / 4, x[u],
                            sums.recent() + r * kRow);
        }
      }
      if (dense)
        multiply_units<kVectors>(
            x, count, cells,
            sums.recent(), [&](int u, int half, std::int64_t step) __attribute__((always_inline)) {
              if (half == 0) ask(u, step / (kSide / cpu::kGroup));
            });
      sums.added();
    }
    sums.end();
    if (one) dots.end(tile);
  }
};

template <class T>
struct TilesDx {
  template <int kVectors>
  [[gnu::always_inline]] static void sum(const cpu::PanelJob& job, const cpu::Strip& s, float* tile) {
    if constexpr (kVectors == 1) {
      if (s.tokens == 1) return sum_columns<1, T>(job, s, tile);
      if (s.tokens == 2) return sum_columns<2, T>(job, s, tile);
      if (s.tokens <= kFewTokens) return sum_columns<kFewTokens, T>(job, s, tile);
    }
    constexpr std::int64_t kRow = kVectors * kLanes;
    const std::int64_t block = s.output / kSide, column = s.output % kSide;
    const std::int32_t *const begin = job.slot + job.begin[block], *const end = job.slot + job.end[block];
    alignas(64) float spread[kTogether][kSide * cpu::kGroup];
    Sums<kVectors> sums(tile);
    for (const std::int32_t* entry = begin; entry < end; entry += kTogether) {
      const int count = static_cast<int>(std::min<std::int64_t>(kTogether, end - entry));
      Cells cells[kTogether];
      const float* x[kTogether] = {};
      for (int u = 0; u < count; ++u) {
        x[u] = s.panel + job.depth_index[entry + u - job.slot] * kSide * kRow;
        const Unit<T> unit(job, entry[u], 0);
        cells[u] = {spread[u], 1, cpu::kGroup};
        if (unit.half) {
          const T* values = unit.values + column / 2;
          const std::uint8_t* positions = unit.positions + column / 8;
          for (std::int64_t r = 0; r < kSide; ++r, values += unit.stride, positions += unit.position_stride)
            narrow8(spread[u] + r * cpu::kGroup, strip_of<true>(values, *positions));
        } else if constexpr (std::is_same_v<T, float>) {
          cells[u] = {unit.values + column, 1, unit.stride};
        } else {
          for (std::int64_t r = 0; r < kSide; ++r)
            narrow8(spread[u] + r * cpu::kGroup, widen8(unit.values + r * unit.stride + column));
        }
      }
      multiply_units<kVectors>(
          x, count, cells,
          sums.recent(), [&](int u, int half, std::int64_t step) __attribute__((always_inline)) {
            if (half != 0 || entry + kTogether + u >= end) return;
            const Unit<T> next(job, entry[kTogether + u], 0);
            // Adjacent strips share cache lines.
            constexpr std::int64_t kLine = 64 / sizeof(T);
            if (column % (next.half ? 2 * kLine : kLine) != 0) return;
            for (std::int64_t r = 0; r < kRunSteps; ++r) ask_row<3>(next, step + r, column, cpu::kGroup);
          });
      sums.added();
    }
    sums.end();
  }
};

template <class T, int kVectors>
cpu::StripFunction tiles_strips(Direction direction) {
  return direction == Direction::forward ? strips<TilesForward<T>, kVectors> : strips<TilesDx<T>, kVectors>;
}
template <int kVectors>
cpu::StripFunction tiles_strips(DType dtype, Direction direction) {
  switch (dtype) {
    case DType::f16: return tiles_strips<cpu::F16, kVectors>(direction);
    case DType::bf16: return tiles_strips<cpu::Bf16, kVectors>(direction);
    default: return tiles_strips<float, kVectors>(direction);
  }
}
cpu::StripFunction choose_tiles_strips(DType dtype, Direction direction, int vectors) {
  return vectors == 3   ? tiles_strips<3>(dtype, direction)
         : vectors == 2 ? tiles_strips<2>(dtype, direction)
                        : tiles_strips<1>(dtype, direction);
}
