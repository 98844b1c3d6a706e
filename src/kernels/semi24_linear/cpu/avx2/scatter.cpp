// avx2_scatter: dX of 2:4 weights, eight tokens on the lanes, in fp32.
#if defined(__x86_64__)

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/check.h"
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

constexpr std::int64_t kTokens = cpu::kScatterTokens, kGroups = cpu::kScatterGroups, kColumns = 4 * kGroups;
static_assert(kTokens == kLanes && kGroups % 2 == 0);

// Rows between a prefetch and its use: some 128 cycles of stored elements each.
constexpr std::int64_t kRowsAhead = 2;

/// Sums [columns][tokens] of one unit.
using Sums = float[kColumns * kTokens];

/// Adds dy, of eight tokens, times the two elements of a group to the sums of their columns.
[[gnu::always_inline]] inline void add_group(Vec dy, const float* values, unsigned positions, float* sums) {
  float* const first = sums + (positions & 3u) * kTokens;
  avx2::store(first, fma(avx2::load(first), dy, splat(values)));
  float* const second = sums + (positions >> 2 & 3u) * kTokens;
  avx2::store(second, fma(avx2::load(second), dy, splat(values + 1)));
}

/// The columns of the groups [begin, end).
template <class T>
void scatter_unit(const cpu::ScatterJob& job, std::int64_t begin, std::int64_t end) {
  const MatmulArgs& args = job.args;
  const Semi24View& w = job.w;
  alignas(64) Sums sums, total = {};
  alignas(32) float wide[2 * kGroups];
  const std::int64_t floats = 4 * (end - begin) * kTokens;
  const float* dy = job.dy;
  for (std::int64_t chain = 0; chain < w.rows; chain += kLongestChain) {
    std::memset(sums, 0, static_cast<std::size_t>(floats) * sizeof(float));
    for (std::int64_t row = chain; row < std::min(chain + kLongestChain, w.rows); ++row, dy += kTokens) {
      const Vec gradients = avx2::load(dy);
      // No hardware prefetcher continues to the next rows, at most a line of positions and eight of values
      // apart.
      const auto* const ahead = reinterpret_cast<const std::byte*>(
          static_cast<const T*>(args.values) + (row + kRowsAhead) * w.row_values() + 2 * begin);
      for (std::size_t i = 0; i < static_cast<std::size_t>(2 * (end - begin)) * sizeof(T); i += 64)
        __builtin_prefetch(ahead + i);
      __builtin_prefetch(w.positions + (row + kRowsAhead) * w.position_bytes() + begin / 2);
      const float* values = in_fp32(static_cast<const T*>(args.values) + row * w.row_values() + 2 * begin,
                                    2 * (end - begin), wide);
      const std::uint8_t* positions = w.positions + row * w.position_bytes() + begin / 2;
      float* column = sums;
      std::int64_t g = begin;
      for (; g + 2 <= end; g += 2, values += 4, column += 8 * kTokens) {
        const unsigned both = *positions++;
        add_group(gradients, values, both & 15u, column);
        add_group(gradients, values + 2, both >> 4, column + 4 * kTokens);
      }
      if (g < end) add_group(gradients, values, *positions & 15u, column);
    }
    for (std::int64_t i = 0; i < floats; i += kLanes)
      avx2::store(total + i, avx2::load(total + i) + avx2::load(sums + i));
  }
  const std::int64_t column = 4 * begin;
  cpu::write_tile({total, kTokens, args.m, std::min(4 * end, w.cols) - column, args.dtype, args.activation,
                   nullptr, static_cast<T*>(args.out) + column, args.out_stride});
}

template <class T>
void scatter_units(const cpu::ScatterJob& job, std::int64_t begin, std::int64_t end) {
  for (std::int64_t unit = begin; unit < end; ++unit)
    scatter_unit<T>(job, unit * kGroups, std::min((unit + 1) * kGroups, job.w.groups()));
}

template <class T>
void pack_scatter_dy(const cpu::ScatterJob& job, std::int64_t begin, std::int64_t end) {
  pack_tokens<T>(job.args, job.w.rows, job.w.rows, 1, begin, end, job.dy);
}
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs scatter_runs{"avx2_scatter"};

template <class T>
static constexpr ScatterOps kOps{&scatter_runs, avx2::pack_scatter_dy<T>, avx2::scatter_units<T>};

const ScatterOps* scatter_avx2(DType dtype) noexcept {
  return dtype == DType::f32    ? &kOps<float>
         : dtype == DType::f16  ? &kOps<F16>
         : dtype == DType::bf16 ? &kOps<Bf16>
                                : nullptr;
}
}  // namespace sparseloom::kernels::cpu

#endif
