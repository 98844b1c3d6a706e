// dz = dy act'(saved): the passes over rows and sums. Included inside an instruction set's region, after
// activation-inl.h.

template <class T>
[[gnu::always_inline]] inline Vec8 some8(const T* p, std::int64_t n) {
  return n == 8 ? widen8(p) : widen8_first(p, n);
}
template <class T>
[[gnu::always_inline]] inline void put8(T* p, Vec8 x, std::int64_t n) {
  if (n == 8)
    narrow8(p, x);
  else
    narrow8_first(p, x, n);
}

template <class T>
[[gnu::always_inline]] inline T* at_row(const ConstMatrixView& m, std::int64_t row) {
  return static_cast<T*>(const_cast<void*>(m.data)) + row * m.stride;
}

// The whole vectors of kRows rows, then the remaining columns. dz_of(dy, saved) is dz; the sums are of the
// rounded dz. Four rows at once: one after another, each would load and store the sums.
template <class T, bool kActive, bool kSums, int kRows, class Function>
[[gnu::always_inline]] inline void gradient_of_rows(const cpu::GradientArgs& args, std::int64_t row,
                                                    const cpu::GradientTile& tile, cpu::Cell* sums,
                                                    const Function& dz_of) {
  const T *dy[kRows], *saved[kRows];
  T* dz[kRows];
  for (int i = 0; i < kRows; ++i) {
    dy[i] = at_row<T>(args.dy, row + i);
    if constexpr (kActive) saved[i] = at_row<T>(args.saved, row + i), dz[i] = at_row<T>(args.dz, row + i);
  }
  const auto step = [&](std::int64_t c, std::int64_t n) __attribute__((always_inline)) {
    Vec8 sum = _mm256_setzero_ps();
    if constexpr (kSums) sum = some8(static_cast<const cpu::Cell*>(sums + c), n);
    unroll<kRows>(SPARSELOOM_UNROLLED(i) {
      Vec8 x = some8(dy[i.value] + c, n);
      if constexpr (kActive) {
        x = dz_of(x, some8(saved[i.value] + c, n));
        put8(dz[i.value] + c, x, n);
        if constexpr (kSums && sizeof(T) < 4) {
          T rounded[8];
          narrow8(rounded, x);
          x = widen8(rounded);
        }
      }
      sum = _mm256_add_ps(sum, x);
    });
    if constexpr (kSums) put8(sums + c, sum, n);
  };
  std::int64_t c = tile.col;
  for (; c + 8 <= tile.col_end; c += 8) step(c, 8);
  if (c < tile.col_end) step(c, tile.col_end - c);
}

template <class T, bool kActive, bool kSums, class Function>
[[gnu::always_inline]] inline void gradient_of_tile(const cpu::GradientArgs& args,
                                                    const cpu::GradientTile& tile, cpu::Cell* sums,
                                                    const Function& dz_of) {
  if constexpr (kSums)
    for (std::int64_t c = tile.col; c < tile.col_end; ++c) sums[c] = 0;
  std::int64_t row = tile.row;
  for (; row + 4 <= tile.row_end; row += 4)
    gradient_of_rows<T, kActive, kSums, 4>(args, row, tile, sums, dz_of);
  for (; row < tile.row_end; ++row) gradient_of_rows<T, kActive, kSums, 1>(args, row, tile, sums, dz_of);
}

template <class T, bool kSums>
inline void gradient_by_activation(const cpu::GradientArgs& args, const cpu::GradientTile& tile,
                                   cpu::Cell* sums) {
  switch (args.activation) {
    case Activation::none:
      return gradient_of_tile<T, false, kSums>(
          args, tile, sums, [&](Vec8 dy, Vec8) __attribute__((always_inline)) { return dy; });
#define SPARSELOOM_ROW(name, torch_name)     \
  case Activation::name:                     \
    return gradient_of_tile<T, true, kSums>( \
        args, tile,                          \
        sums, [&](Vec8 dy, Vec8 saved) __attribute__((always_inline)) { return name##_dz(dy, saved); });
      SPARSELOOM_ACTIVATION_FUNCTIONS(SPARSELOOM_ROW)
#undef SPARSELOOM_ROW
  }
}

template <class T>
inline void gradient_of(const cpu::GradientArgs& args, const cpu::GradientTile& tile, void* sums) {
  if (sums == nullptr) return gradient_by_activation<T, false>(args, tile, nullptr);
  gradient_by_activation<T, true>(args, tile, static_cast<cpu::Cell*>(sums));
}

inline void gradient_rows(const cpu::GradientArgs& args, const cpu::GradientTile& tile, void* sums) {
  switch (args.dy.dtype) {
    case DType::f16: return gradient_of<cpu::F16>(args, tile, sums);
    case DType::bf16: return gradient_of<cpu::Bf16>(args, tile, sums);
    default: return gradient_of<cpu::Cell>(args, tile, sums);
  }
}

template <class T>
[[gnu::always_inline]] inline void total_of(const cpu::GradientArgs& args, const cpu::Cell* sums,
                                            std::int64_t chunks, std::int64_t begin, std::int64_t end) {
  for (std::int64_t c = begin; c < end; c += 8) {
    const std::int64_t n = end - c < 8 ? end - c : 8;
    Vec8 total = some8(sums + c, n);
    for (std::int64_t chunk = 1; chunk < chunks; ++chunk)
      total = _mm256_add_ps(total, some8(sums + chunk * args.dy.cols + c, n));
    put8(static_cast<T*>(args.dbias) + c, total, n);
  }
}

inline void gradient_total(const cpu::GradientArgs& args, const void* given, std::int64_t chunks,
                           std::int64_t begin, std::int64_t end) {
  const auto* const sums = static_cast<const cpu::Cell*>(given);
  switch (args.dy.dtype) {
    case DType::f16: return total_of<cpu::F16>(args, sums, chunks, begin, end);
    case DType::bf16: return total_of<cpu::Bf16>(args, sums, chunks, begin, end);
    default: return total_of<cpu::Cell>(args, sums, chunks, begin, end);
  }
}
