// avx2_spread: dX of 2:4 weights, up to 24 tokens on the lanes at a time, in fp32.
#if defined(__x86_64__)

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/check.h"
#include "kernels/semi24_linear/cpu/lanes_of_pairs.h"
#include "kernels/semi24_linear/cpu/ops.h"
#include "kernels/shared/cpu/cell.h"
#include "kernels/shared/cpu/intrinsics.h"
#include "kernels/shared/cpu/tile.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/shared/cpu/avx2/begin.h"
namespace {
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx2/vector.h"
#include "kernels/shared/cpu/chain-inl.h"
#include "kernels/semi24_linear/cpu/generic/tokens-inl.h"
// clang-format on

static_assert(kLanes == cpu::kTokenLanes);
// Groups of a unit, an even number.
constexpr std::int64_t kGroups = 16, kColumns = 4 * kGroups;
// Rows of a tile: unpacked it takes half of L1, three vectors of dY some of the rest.
constexpr std::int64_t kRows = 64;
// Rows between a prefetch and its use: some twenty cycles each.
constexpr std::int64_t kRowsAhead = 20;

/// A tile of W by strips of eight columns.
using Tile = float[kColumns / kLanes][kRows][kLanes];

// For each byte of positions, which of four values and four zeros its two groups' columns have.
constexpr auto kLaneOf = cpu::lanes_of_pairs<std::uint8_t>();

/// Unpacks the groups [begin, end) of the rows [row, row + rows).
template <class T>
void unpack_tile(const cpu::PackedJob& job, std::int64_t row, std::int64_t rows, std::int64_t begin,
                 std::int64_t end, Tile& tile) {
  const Semi24View& w = job.w;
  alignas(32) float wide[2 * kGroups] = {};
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* const values = static_cast<const T*>(job.args.values) + (row + r) * w.row_values() + 2 * begin;
    const std::uint8_t* const positions = w.positions + (row + r) * w.position_bytes() + begin / 2;
    // No hardware prefetcher continues to the next rows.
    const auto* const ahead = reinterpret_cast<const std::byte*>(values + kRowsAhead * w.row_values());
    constexpr std::size_t kBytes = 2 * kGroups * sizeof(T);
    for (std::size_t i = 0; i < kBytes; i += 64) __builtin_prefetch(ahead + i);
    __builtin_prefetch(ahead + kBytes - 1);  // a row need not begin with a line
    __builtin_prefetch(positions + kRowsAhead * w.position_bytes());
    const auto unpack = [&](const float* from, std::int64_t strip) __attribute__((always_inline)) {
      const __m256 stored = _mm256_zextps128_ps256(_mm_loadu_ps(from));
      const __m128i lanes =
          _mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(kLaneOf[positions[strip]].data()));
      avx2::store(tile[strip][r], _mm256_permutevar8x32_ps(stored, _mm256_cvtepu8_epi32(lanes)));
    };
    if (end - begin == kGroups) {
      const float* const from = in_fp32(values, 2 * kGroups, wide);
      unroll<kGroups / 2>(SPARSELOOM_UNROLLED(s) { unpack(from + 4 * s.value, s.value); });
    } else {
      // Behind a row's end is the next row, or nothing.
      const std::int64_t count = 2 * (end - begin);
      if constexpr (std::is_same_v<T, float>)
        std::memcpy(wide, values, static_cast<std::size_t>(count) * sizeof(float));
      else
        in_fp32(values, count, wide);
      for (std::int64_t s = 0; 4 * s < count; ++s) unpack(wide + 4 * s, s);
    }
  }
}

// Adds kVectors of tokens times kCount columns of a strip to their sums, `stride` floats apart by column.
// dy: the first row's gradients, [kVectors][.. rows][lanes]; `vector` floats are from one vector to the next.
template <int kVectors, int kCount>
[[gnu::always_inline]] inline void multiply(const float* strip, std::int64_t rows, const float* dy,
                                            std::int64_t vector, float* sums, std::int64_t stride) {
  Vec acc[kCount][kVectors];
  unroll<kCount>(SPARSELOOM_UNROLLED(c) {
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) { acc[c.value][v.value] = zero(); });
  });
  for (std::int64_t r = 0; r < rows; ++r, strip += kLanes, dy += kLanes) {
    Vec gradients[kVectors];
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) { gradients[v.value] = avx2::load(dy + v.value * vector); });
    unroll<kCount>(SPARSELOOM_UNROLLED(c) {
      const Vec weight = splat(strip + c.value);
      unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
        acc[c.value][v.value] = fma(acc[c.value][v.value], gradients[v.value], weight);
      });
    });
  }
  unroll<kCount>(SPARSELOOM_UNROLLED(c) {
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
      float* const at = sums + c.value * stride + v.value * kLanes;
      avx2::store(at, avx2::load(at) + acc[c.value][v.value]);
    });
  });
}

template <int kVectors>
void multiply_tile(const Tile& tile, std::int64_t strips, std::int64_t rows, const float* dy,
                   std::int64_t vector, float* sums, std::int64_t stride) {
  constexpr int kCount = kVectors == 1 ? 8 : 4;  // chains of additions enough to hide their latency
  for (std::int64_t s = 0; s < strips; ++s)
    for (int c = 0; c < kLanes; c += kCount)
      multiply<kVectors, kCount>(tile[s][0] + c, rows, dy, vector, sums + (s * kLanes + c) * stride, stride);
}

// The columns of the groups [begin, end). All tokens multiply a tile while it is in L1.
template <class T>
void spread_unit(const cpu::PackedJob& job, std::int64_t begin, std::int64_t end) {
  const MatmulArgs& args = job.args;
  const Semi24View& w = job.w;
  const std::int64_t vectors = core::ceil_div(args.m, kLanes), stride = vectors * kLanes;
  const std::int64_t strips = core::ceil_div(end - begin, std::int64_t{2}), vector = w.rows * kLanes;
  alignas(64) float sums[kColumns * cpu::kSpreadMostTokens], total[kColumns * cpu::kSpreadMostTokens];
  alignas(64) Tile tile;
  in_blocks(w.rows, kRows, strips * kLanes * stride, sums, total, [&](std::int64_t row) {
    const std::int64_t rows = std::min(kRows, w.rows - row);
    unpack_tile<T>(job, row, rows, begin, end, tile);
    for (std::int64_t v = 0; v < vectors;) {
      const float* const dy = job.packed + v * vector + row * kLanes;
      float* const at = sums + v * kLanes;
      // Threes and at most two twos; one vector alone is slower.
      const std::int64_t left = vectors - v;
      if (left == 1) {
        multiply_tile<1>(tile, strips, rows, dy, vector, at, stride), v += 1;
      } else if (left == 2 || left == 4) {
        multiply_tile<2>(tile, strips, rows, dy, vector, at, stride), v += 2;
      } else {
        multiply_tile<3>(tile, strips, rows, dy, vector, at, stride), v += 3;
      }
    }
  });
  cpu::write_tile({sums, stride, args.m, std::min(4 * end, w.cols) - 4 * begin, args.dtype, args.activation,
                   nullptr, static_cast<T*>(args.out) + 4 * begin, args.out_stride});
}

template <class T>
void spread_units(const cpu::PackedJob& job, std::int64_t begin, std::int64_t end) {
  for (std::int64_t unit = begin; unit < end; ++unit)
    spread_unit<T>(job, unit * kGroups, std::min((unit + 1) * kGroups, job.w.groups()));
}

template <class T>
void pack_spread_dy(const cpu::PackedJob& job, std::int64_t begin, std::int64_t end) {
  pack_tokens<T>(job.args, job.w.rows, job.w.rows, 1, begin, end, job.packed);
}
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs spread_runs{"avx2_spread"};

template <class T>
static constexpr PackedOps kOps{&spread_runs,  Direction::dx,           kTokenLanes,          avx2::kGroups,
                                vector_floats, avx2::pack_spread_dy<T>, avx2::spread_units<T>};

const PackedOps* spread_avx2(DType dtype) noexcept {
  return of_dtype(dtype, kOps<float>, kOps<F16>, kOps<Bf16>);
}
}  // namespace sparseloom::kernels::cpu

#endif
