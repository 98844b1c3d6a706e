// The epilogue of bf16 products. Included inside a region, after pairs-inl.h.

// sums [output][vector][lane] += the residual, which is read token by token and transposed 16 x 16 at a time.
// Nothing is read beyond the last token or output.
template <int kVectors>
[[gnu::noinline]] void add_residual(const cpu::PanelJob& job, const cpu::TileStrip& s, std::int64_t outputs,
                                    float* sums) {
  constexpr std::int64_t kRow = kVectors * kLanes;
  const auto* const residual =
      static_cast<const std::uint16_t*>(job.residual) + s.token * job.residual_stride + s.output;
  for (std::int64_t o = 0; o < outputs; o += kLanes) {
    const __mmask16 valid = first16(outputs - o);
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
      Vec square[kLanes];
      unroll<kLanes>(SPARSELOOM_UNROLLED(t) {
        const std::int64_t token = v.value * kLanes + t.value;
        const __m256i bits = token < s.tokens
                                 ? _mm256_maskz_loadu_epi16(valid, residual + token * job.residual_stride + o)
                                 : _mm256_setzero_si256();
        square[t.value] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
      });
      transpose(square);
      unroll<kLanes>(SPARSELOOM_UNROLLED(i) {
        float* const at = sums + (o + i.value) * kRow + v.value * kLanes;
        store(at, _mm512_add_ps(load(at), square[i.value]));
      });
    });
  }
}

// sums [output][vector][lane] -> out [token][output], up to 32 outputs. Pairs of outputs become cells, of
// which 16 x 16 are transposed at a time.
template <int kVectors>
void write_sums(const cpu::PanelJob& job, const cpu::TileStrip& s, float* sums) {
  constexpr std::int64_t kRow = kVectors * kLanes;
  const std::int64_t outputs = std::min(s.outputs, job.outputs - s.output);
  // Without an activation the bias is added while rounding, otherwise here.
  alignas(64) float bias[cpu::kTileOutputs] = {};
  if (job.bias) widen_bias(static_cast<const std::uint16_t*>(job.bias) + s.output, outputs, bias);
  if (job.activation != Activation::none) {
    activate_sums<true, kVectors>(job.activation, bias, sums, outputs);
    std::fill_n(bias, cpu::kTileOutputs, 0.0f);
  }
  if (job.residual) add_residual<kVectors>(job, s, outputs, sums);
  // Round, transpose and store.
  const auto rows = cpu::rows_of(job, s.leaving, s.token, s.tokens, s.output, outputs);
  unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
    Vec cells[kLanes];
    unroll<kLanes>(SPARSELOOM_UNROLLED(i) {
      const float* at = sums + 2 * i.value * kRow + v.value * kLanes;
      cells[i.value] = pair_up(load(at), load(at + kRow), bias[2 * i.value], bias[2 * i.value + 1]);
    });
    transpose(cells);
    const std::int64_t token = v.value * kLanes;
    unroll<kLanes>(SPARSELOOM_UNROLLED(t) {
      if (token + t.value >= s.tokens) return;
      store_bf16(reinterpret_cast<std::uint16_t*>(rows.out + (token + t.value) * rows.stride),
                 _mm512_castps_si512(cells[t.value]), outputs);
    });
  });
}
