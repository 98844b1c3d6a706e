// Packs the micro-panels of forward and dx. Included inside an instruction set's region, after its Product.
// With kDepthStep 1 elements are widened to fp32 cells; with 2 and 4 cells are pairs of bf16 and quads of
// int8, passed through Product::prepare.

// Cells [k, k + kLanes) of one token, which has `depth` elements; zero past them.
template <class T>
[[gnu::always_inline]] inline Vec row_cells(const T* row, std::int64_t k, std::int64_t depth) {
  if constexpr (kDepthStep > 1) {
    const std::int64_t at = kDepthStep * k, left = depth - at;
    if (left >= kDepthStep * kLanes)
      return Product::prepare(load(reinterpret_cast<const cpu::Cell*>(row + at)));
    alignas(64) T padded[kDepthStep * kLanes] = {};
    if (left > 0)
      std::memcpy(static_cast<void*>(padded), row + at, static_cast<std::size_t>(left) * sizeof(T));
    return Product::prepare(load(reinterpret_cast<const cpu::Cell*>(padded)));
  } else {
    const std::int64_t left = depth - k;
    return left >= kLanes ? widen(row + k) : left > 0 ? widen_first(row + k, left) : zero();
  }
}

// Transposes a square of kLanes rows of cells and stores its first `steps` steps, `row` cells apart.
[[gnu::always_inline]] inline void store_square(Vec (&square)[kLanes], int steps, std::int64_t row,
                                                float* out) {
  transpose(square);
  if (steps == kLanes) {
    unroll<kLanes>(SPARSELOOM_UNROLLED(i) { store(out + i.value * row, square[i.value]); });
  } else {  // the depth ends in half a square: an odd number of blocks of 8 cells
    unroll<kLanes>(SPARSELOOM_UNROLLED(i) {
      if (i.value < steps) store(out + i.value * row, square[i.value]);
    });
  }
}

// The distance, in squares, at which the tokens' rows are prefetched: the rows of 48 tokens are more streams
// than the hardware follows. Measured faster at low densities; 4 to 12 squares perform alike.
constexpr int kSquaresAhead = 8;

// [token][depth] -> [step][vector][lane]: squares of kLanes tokens x kLanes cells are transposed in
// registers.
template <class T>
void pack_tokens(const cpu::PanelJob& job, const cpu::Pack& p) {
  const std::int64_t row = std::int64_t{p.vectors} * kLanes;
  for (std::int64_t k = p.begin; k < p.end; k += kLanes) {
    const int steps = static_cast<int>(std::min<std::int64_t>(kLanes, p.end - k));
    for (int v = 0; v < p.vectors; ++v) {
      const std::int64_t token = p.token + v * kLanes;
      const std::int64_t valid = job.tokens - token;
      const T* source = static_cast<const T*>(job.in) + token * job.in_stride;
      // Load a square of rows.
      Vec square[kLanes];
      if (valid >= kLanes) {
        unroll<kLanes>(SPARSELOOM_UNROLLED(i) {
          __builtin_prefetch(source + i.value * job.in_stride + kDepthStep * (k + kSquaresAhead * kLanes));
        });
        unroll<kLanes>(SPARSELOOM_UNROLLED(i) {
          square[i.value] = row_cells(source + i.value * job.in_stride, k, job.depth);
        });
      } else {
        unroll<kLanes>(SPARSELOOM_UNROLLED(i) {
          square[i.value] =
              i.value < valid ? row_cells(source + i.value * job.in_stride, k, job.depth) : zero();
        });
      }
      store_square(square, steps, row, p.panel + k * row + v * kLanes);
    }
  }
}

void pack_panel(const cpu::PanelJob& job, const cpu::Pack& p) {
  if constexpr (kDepthStep == 4)
    return pack_tokens<std::int8_t>(job, p);
  else if constexpr (kDepthStep == 2)
    return pack_tokens<cpu::Bf16>(job, p);
  else
    switch (job.dtype) {
      case DType::f16: return pack_tokens<cpu::F16>(job, p);
      case DType::bf16: return pack_tokens<cpu::Bf16>(job, p);
      default: return pack_tokens<float>(job, p);
    }
}
