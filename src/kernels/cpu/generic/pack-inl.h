// Packing for forward and dx, included inside a region after its Product. kDepthStep 1 widens to fp32 cells;
// 2 keeps pairs of bf16 and 4 quads of int8, as Product::prepare leaves them.

// Cells [k, k + kLanes) of one token, of `depth` elements; zero beyond it.
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

// Squares ahead that rows are asked for: 48 tokens' rows are more streams than the hardware follows. 2 to 3 %
// of a product of density .05 from memory, 1 % at .1 (Zen 5; 4 to 12 squares alike).
constexpr int kSquaresAhead = 8;

// [token][depth] -> [step][vector][lane]: squares of kLanes tokens x kLanes cells, turned in registers.
template <class T>
void pack_tokens(const cpu::PanelJob& job, const cpu::Pack& p) {
  const std::int64_t row = std::int64_t{p.vectors} * kLanes;
  for (std::int64_t k = p.begin; k < p.end; k += kLanes) {
    const int steps = static_cast<int>(std::min<std::int64_t>(kLanes, p.end - k));
    for (int v = 0; v < p.vectors; ++v) {
      const std::int64_t token = p.token + v * kLanes;
      const std::int64_t valid = job.tokens - token;
      const T* source = static_cast<const T*>(job.in) + token * job.in_stride;
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
      transpose(square);
      float* out = p.panel + k * row + v * kLanes;
      if (steps == kLanes) {
        unroll<kLanes>(SPARSELOOM_UNROLLED(i) { store(out + i.value * row, square[i.value]); });
      } else {  // a block of 8 cells' depth at the end of an odd number of them
        unroll<kLanes>(SPARSELOOM_UNROLLED(i) {
          if (i.value < steps) store(out + i.value * row, square[i.value]);
        });
      }
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
