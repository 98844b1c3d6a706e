// avx512vnni_panel: VPDPBUSD multiplies quads of int8 and sums them in int32.
//
// The instruction multiplies unsigned by signed numbers. So x is packed as x + 128, and 128 times the sum of
// each stored row of W is subtracted at the end; computing these sums once per call costs as much as one
// token. All of it is exact: sums wrap modulo 2^32, and the true sum fits. The alternative, |x| times W with
// x's signs, needs one more instruction per product, since a weight is broadcast to sixteen tokens with
// sixteen signs.
#if defined(__x86_64__)

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/bsr_linear/cpu/ops.h"
#include "kernels/bsr_linear/cpu/stream.h"
#include "kernels/shared/cpu/intrinsics.h"
#include "kernels/shared/cpu/tile.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/shared/cpu/avx512_vnni/begin.h"
namespace {
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx512/vector.h"
// clang-format on

constexpr int kDepthStep = 4;

[[gnu::always_inline]] inline __m512i bits(Vec x) { return _mm512_castps_si512(x); }
[[gnu::always_inline]] inline Vec cells(__m512i x) { return _mm512_castsi512_ps(x); }

// Row sums of 8 outputs, from kChunks vectors of 64 bytes per block. One vector holds between 8 rows of 8
// columns and half a row of 128.
template <int kChunks>
void sum_rows_of(const cpu::PanelJob& job, std::int64_t output, std::int32_t* sums) {
  const std::int64_t block = output / job.output_block, first = job.begin[block], last = job.end[block];
  const auto* from = static_cast<const std::int8_t*>(job.values) + output % job.output_block * job.block_cols;
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(128));
  __m512i acc[kChunks];
  unroll<kChunks>(SPARSELOOM_UNROLLED(c) { acc[c.value] = _mm512_setzero_si512(); });
  for (std::int64_t i = first; i < last; ++i) {
    const std::int8_t* const row = from + i * job.block_elements;
    unroll<kChunks>(SPARSELOOM_UNROLLED(c) {
      __builtin_prefetch(row + job.block_elements + c.value * 64);  // harmless past the last block
      acc[c.value] = _mm512_dpbusd_epi32(acc[c.value], offset, _mm512_loadu_si512(row + c.value * 64));
    });
  }
  alignas(64) std::uint32_t partials[kChunks * kLanes];
  unroll<kChunks>(SPARSELOOM_UNROLLED(c) { _mm512_store_si512(partials + c.value * kLanes, acc[c.value]); });
  constexpr int kPartials = kChunks * kLanes / cpu::kGroup;  // partial sums per row
  for (int o = 0; o < cpu::kGroup; ++o) {
    std::uint32_t sum = 0;
    for (int i = 0; i < kPartials; ++i) sum += partials[o * kPartials + i];
    sums[o] = static_cast<std::int32_t>(sum);
  }
}

void sum_rows(const cpu::PanelJob& job, std::int64_t output, std::int32_t* sums) {
  switch (job.block_cols) {
    case 8: return sum_rows_of<1>(job, output, sums);
    case 16: return sum_rows_of<2>(job, output, sums);
    case 32: return sum_rows_of<4>(job, output, sums);
    case 64: return sum_rows_of<8>(job, output, sums);
    default: return sum_rows_of<16>(job, output, sums);
  }
}

struct Product {
  static constexpr bool kExact = true;
  [[gnu::always_inline]] static Vec prepare(Vec cell) {
    return cells(_mm512_xor_si512(bits(cell), _mm512_set1_epi32(0x80808080)));
  }
  [[gnu::always_inline]] static Vec step(Vec acc, Vec x, Vec w) {
    return cells(_mm512_dpbusd_epi32(bits(acc), bits(x), bits(w)));
  }

  // Converts the sums to float(sum) * the token's scale. write_tile applies the outputs' scales.
  [[gnu::always_inline]] static const float* finish(const cpu::PanelJob& job, const cpu::Strip& s,
                                                    float* tile, std::int64_t row, float* factors) {
    std::int32_t own[cpu::kGroup];
    if (job.row_sums == nullptr) sum_rows(job, s.output, own);
    const std::int32_t* const excess = job.row_sums ? job.row_sums + s.output : own;
    for (std::int64_t t = 0; t < row; t += kLanes) {
      const std::int64_t valid = std::clamp<std::int64_t>(s.tokens - t, 0, kLanes);
      const Vec scale = job.token_scale_each
                            ? _mm512_maskz_loadu_ps(first(valid), job.token_scale + s.token + t)
                            : _mm512_set1_ps(*job.token_scale);
      for (int o = 0; o < cpu::kGroup; ++o) {
        float* const at = tile + o * row + t;
        const __m512i sum = _mm512_sub_epi32(bits(load(at)), _mm512_set1_epi32(excess[o]));
        store(at, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale));
      }
    }
    for (int o = 0; o < cpu::kGroup; ++o)
      factors[o] = job.output_scale[job.output_scale_each ? std::min(s.output + o, job.outputs - 1) : 0];
    return factors;
  }
};
// clang-format off
#include "kernels/bsr_linear/cpu/generic/pack-inl.h"
#include "kernels/shared/cpu/chain-inl.h"
#include "kernels/bsr_linear/cpu/generic/next_strip-inl.h"
#include "kernels/bsr_linear/cpu/generic/panel-inl.h"
#include "kernels/bsr_linear/cpu/generic/choose_strip-inl.h"
// clang-format on
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs panel_runs{"avx512vnni_panel"};
const PanelOps kAvx512VnniPanel = {&panel_runs,
                                   avx512_vnni::kLanes,
                                   avx512_vnni::kDepthStep,
                                   nullptr,
                                   avx512_vnni::pack_panel,
                                   avx512_vnni::choose_strip,
                                   nullptr,
                                   nullptr,
                                   avx512_vnni::spin,
                                   nullptr,
                                   nullptr,
                                   nullptr,
                                   avx512_vnni::sum_rows};
}  // namespace sparseloom::kernels::cpu

#endif
