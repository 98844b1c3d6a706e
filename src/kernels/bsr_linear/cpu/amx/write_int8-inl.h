// The epilogue of int8 products. Included inside a region, after rows-inl.h.

// int32 sums [output][vector][lane] -> act(fma(float(sum) * token scale, output scale, bias)), in place.
template <int kVectors>
[[gnu::always_inline]] inline void scale_sums(const cpu::PanelJob& job, const cpu::TileStrip& s,
                                              std::int64_t outputs, float* sums) {
  constexpr std::int64_t kRow = kVectors * kLanes;
  alignas(64) float bias[cpu::kTileOutputs] = {};
  if (job.bias != nullptr && job.out_dtype == DType::bf16)
    widen_bias(static_cast<const std::uint16_t*>(job.bias) + s.output, outputs, bias);
  else if (job.bias != nullptr)
    std::memcpy(bias, static_cast<const float*>(job.bias) + s.output,
                static_cast<std::size_t>(outputs) * sizeof(float));
  Vec token[kVectors];
  unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
    const __mmask16 valid = first16(s.tokens - v.value * kLanes);
    token[v.value] = job.token_scale_each
                         ? _mm512_maskz_loadu_ps(valid, job.token_scale + s.token + v.value * kLanes)
                         : _mm512_set1_ps(*job.token_scale);
  });
  for (std::int64_t o = 0; o < outputs; ++o) {
    const Vec factor = _mm512_set1_ps(job.output_scale[job.output_scale_each ? s.output + o : 0]),
              add = _mm512_set1_ps(bias[o]);
    float* const row = sums + o * kRow;
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
      const Vec sum = _mm512_cvtepi32_ps(_mm512_castps_si512(load(row + v.value * kLanes)));
      store(row + v.value * kLanes, _mm512_fmadd_ps(_mm512_mul_ps(sum, token[v.value]), factor, add));
    });
  }
  if (job.activation == Activation::none) return;
  constexpr float kNoBias[cpu::kTileOutputs] = {};  // it is in the sums
  job.out_dtype == DType::bf16 ? activate_sums<true, kVectors>(job.activation, kNoBias, sums, outputs)
                               : activate_sums<false, kVectors>(job.activation, kNoBias, sums, outputs);
}

// Like interleave_bf16, but keeps denormals: the other int8 kernels keep them, and all write the same bits.
inline Vec interleave_denormals(Vec low, Vec high) {
  alignas(64) std::uint16_t rounded[2][kLanes], cells[2 * kLanes];
  narrow(reinterpret_cast<cpu::Bf16*>(rounded[0]), low);
  narrow(reinterpret_cast<cpu::Bf16*>(rounded[1]), high);
  for (int i = 0; i < 2 * kLanes; ++i) cells[i] = rounded[i % 2][i / 2];
  return _mm512_castsi512_ps(_mm512_load_si512(cells));
}
[[gnu::always_inline]] inline Vec pair_up(Vec low, Vec high) {
  constexpr int kDenormal = 0x20;
  const unsigned denormal = _mm512_fpclass_ps_mask(low, kDenormal) | _mm512_fpclass_ps_mask(high, kDenormal);
  return __builtin_expect(denormal != 0, 0) ? interleave_denormals(low, high) : interleave_bf16(low, high);
}

template <int kVectors>
void write_bf16(const cpu::PanelJob& job, const cpu::TileStrip& s, std::int64_t outputs, const float* sums) {
  constexpr std::int64_t kRow = kVectors * kLanes;
  const auto rows = cpu::rows_of(job, s.leaving, s.token, s.tokens, s.output, outputs);
  unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
    Vec cells[kLanes];
    unroll<kLanes>(SPARSELOOM_UNROLLED(i) {
      const float* at = sums + 2 * i.value * kRow + v.value * kLanes;
      cells[i.value] = pair_up(load(at), load(at + kRow));
    });
    transpose(cells);
    unroll<kLanes>(SPARSELOOM_UNROLLED(t) {
      const std::int64_t token = v.value * kLanes + t.value;
      if (token < s.tokens)
        store_bf16(reinterpret_cast<std::uint16_t*>(rows.out + token * rows.stride),
                   _mm512_castps_si512(cells[t.value]), outputs);
    });
  });
}

template <int kVectors>
void write_f32(const cpu::PanelJob& job, const cpu::TileStrip& s, std::int64_t outputs, const float* sums) {
  constexpr std::int64_t kRow = kVectors * kLanes;
  const auto rows = cpu::rows_of(job, s.leaving, s.token, s.tokens, s.output, outputs);
  for (std::int64_t o = 0; o < outputs; o += kLanes) {
    const __mmask16 mask = first16(outputs - o);
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
      Vec square[kLanes];
      unroll<kLanes>(
          SPARSELOOM_UNROLLED(i) { square[i.value] = load(sums + (o + i.value) * kRow + v.value * kLanes); });
      transpose(square);
      unroll<kLanes>(SPARSELOOM_UNROLLED(t) {
        const std::int64_t token = v.value * kLanes + t.value;
        if (token >= s.tokens) return;
        _mm512_mask_storeu_ps(reinterpret_cast<float*>(rows.out + token * rows.stride) + o, mask,
                              square[t.value]);
      });
    });
  }
}

template <int kVectors>
void write_sums(const cpu::PanelJob& job, const cpu::TileStrip& s, float* sums) {
  const std::int64_t outputs = std::min(s.outputs, job.outputs - s.output);
  scale_sums<kVectors>(job, s, outputs, sums);
  job.out_dtype == DType::bf16 ? write_bf16<kVectors>(job, s, outputs, sums)
                               : write_f32<kVectors>(job, s, outputs, sums);
}
