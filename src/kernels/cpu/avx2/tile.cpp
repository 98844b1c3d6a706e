// Bias, activation and rounding of finished tiles, for every instruction set: eight outputs of eight tokens at a time.
#if defined(__x86_64__)

#include "kernels/cpu/tile.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/cell.h"
#include "kernels/cpu/intrinsics.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/cpu/avx2/begin.h"
namespace {
#include "kernels/cpu/generic/unroll-inl.h"
#include "kernels/cpu/avx2/simd.h"
#include "kernels/cpu/generic/activation-inl.h"
// clang-format on

/// Eight outputs of the tile, from output `first` on, of tokens t .. t + 7: to to[first] and on, their rows `stride` apart.
template <class T, class Function>
[[gnu::always_inline]] inline void write_square(const cpu::TileOut& o, std::int64_t first, std::int64_t t, T* to,
                                                std::int64_t stride, Function act) {
  const std::int64_t outputs = std::min<std::int64_t>(cpu::kGroup, o.outputs - first);
  const T* const biases = o.bias ? static_cast<const T*>(o.bias) + first : nullptr;
  const Vec8 bias = !biases ? _mm256_setzero_ps() : outputs == 8 ? widen8(biases) : widen8_first(biases, outputs);
  const Vec8 scale = o.scale ? widen8(o.scale + first) : all8(1.0f);
  const auto finish = [&](Vec8 x) __attribute__((always_inline)) { return act(_mm256_fmadd_ps(x, scale, bias)); };
  const auto more = [&](std::int64_t token) __attribute__((always_inline)) {
    const T* const row = static_cast<const T*>(o.residual) + token * o.residual_stride + first;
    return outputs == 8 ? widen8(row) : widen8_first(row, outputs);
  };
  Vec8 square[8];
  unroll<8>(SPARSELOOM_UNROLLED(i) { square[i.value] = widen8(o.tile + (first + i.value) * o.tile_stride + t); });
  transpose8(square);
  T* out = to + first;
  if (outputs == 8 && t + 8 <= o.tokens) {
    unroll<8>(SPARSELOOM_UNROLLED(i) { square[i.value] = finish(square[i.value]); });
    if (o.residual) unroll<8>(SPARSELOOM_UNROLLED(i) { square[i.value] = _mm256_add_ps(square[i.value], more(t + i.value)); });
    unroll<8>(SPARSELOOM_UNROLLED(i) { narrow8(out + i.value * stride, square[i.value]); });
  } else {
    const std::int64_t tokens = std::min<std::int64_t>(8, o.tokens - t);
    alignas(32) float rows[8][8];
    unroll<8>(SPARSELOOM_UNROLLED(i) { narrow8(rows[i.value], finish(square[i.value])); });
    for (std::int64_t i = 0; i < tokens; ++i) {
      const Vec8 row = widen8(rows[i]);
      narrow8_first(out + i * stride, o.residual ? _mm256_add_ps(row, more(t + i)) : row, outputs);
    }
  }
}

/// 32 bytes by loads as wide as narrow8's stores: one that spans two of them waits until both are in the cache, behind all that was
/// streamed before. 2 to 6 % of a bf16 product of density .05 or .1; what is left is what memory takes.
template <class T>
[[gnu::always_inline]] inline __m256i as_stored(const T* from) {
  if constexpr (sizeof(T) == 4) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
  } else {
    const auto* const halves = reinterpret_cast<const __m128i*>(from);
    return _mm256_set_m128i(_mm_load_si128(halves + 1), _mm_load_si128(halves));
  }
}

/// A cache line of outputs for each of eight tokens. Outputs that outgrow L2 are read again much later, and a line that is written
/// to the caches is read first: 4 % of a product of density .05 or .1, and as much of four layers one behind the other.
template <class T, class Function>
[[gnu::always_inline]] inline void stream_lines(const cpu::TileOut& o, std::int64_t t, Function act) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  alignas(64) T lines[8 * kLine];
  for (std::int64_t first = 0; first < kLine; first += cpu::kGroup) write_square<T>(o, first, t, lines, kLine, act);
  T* row = static_cast<T*>(o.out) + t * o.out_stride;
  for (std::int64_t i = 0; i < 8; ++i, row += o.out_stride) {
    unroll<2>(SPARSELOOM_UNROLLED(half) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(row) + half.value, as_stored(lines + i * kLine + half.value * (kLine / 2)));
    });
  }
}

template <class T, class Function>
[[gnu::always_inline]] inline void write_with(const cpu::TileOut& o, Function act) {
  const bool streams = o.streams && o.outputs * sizeof(T) == 64 && reinterpret_cast<std::uintptr_t>(o.out) % 64 == 0 &&
                       o.out_stride * sizeof(T) % 64 == 0;
  for (std::int64_t t = 0; t < o.tokens; t += 8) {
    if (streams && t + 8 <= o.tokens) {
      stream_lines<T>(o, t, act);
    } else {
      T* const out = static_cast<T*>(o.out) + t * o.out_stride;
      for (std::int64_t first = 0; first < o.outputs; first += cpu::kGroup) write_square<T>(o, first, t, out, o.out_stride, act);
    }
  }
}

template <class T>
void write_as(const cpu::TileOut& o) {
  switch (o.activation) {
    case Activation::none:
      return write_with<T>(
          o, [&](Vec8 x) __attribute__((always_inline)) { return x; });
    case Activation::relu:
      return write_with<T>(
          o, [&](Vec8 x) __attribute__((always_inline)) { return relu(x); });
    case Activation::gelu_erf:
      return write_with<T>(
          o, [&](Vec8 x) __attribute__((always_inline)) { return gelu_erf(x); });
    case Activation::gelu_tanh:
      return write_with<T>(
          o, [&](Vec8 x) __attribute__((always_inline)) { return gelu_tanh(x); });
    case Activation::silu:
      return write_with<T>(
          o, [&](Vec8 x) __attribute__((always_inline)) { return silu(x); });
  }
}

template <class T>
void write_run_as(const float* tile, const float* partial, std::int64_t n, T* out) {
  for (std::int64_t i = 0; i < n; i += 8) {
    const Vec8 x = widen8(tile + i);
    narrow8(out + i, partial ? _mm256_add_ps(widen8(partial + i), x) : x);
  }
}
}  // namespace
#include "kernels/cpu/avx2/end.h"

namespace sparseloom::kernels::cpu {

void write_tile(const TileOut& out) {
  switch (out.dtype) {
    case DType::f16: return avx2::write_as<F16>(out);
    case DType::bf16: return avx2::write_as<Bf16>(out);
    default: return avx2::write_as<float>(out);
  }
}

void write_run(const float* tile, const float* partial, std::int64_t n, DType dtype, void* out) {
  switch (dtype) {
    case DType::f16: return avx2::write_run_as(tile, partial, n, static_cast<F16*>(out));
    case DType::bf16: return avx2::write_run_as(tile, partial, n, static_cast<Bf16*>(out));
    default: return avx2::write_run_as(tile, partial, n, static_cast<float*>(out));
  }
}

}  // namespace sparseloom::kernels::cpu

#endif
