// avx2_strips: dX of 2:4 weights, columns on the lanes, up to four tokens at a time, in fp32. Eight columns
// of a row of W are one permutation in a register, and multiply a number of dY for each token: a W that few
// tokens read is never written anywhere.
#if defined(__x86_64__)

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

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
#include "kernels/semi24_linear/cpu/generic/strip_of-inl.h"
// clang-format on

// Groups of a unit; those of a thread are computed kGroups at a time, since short pieces of rows leave memory
// idle, and kRows rows of them before the next ones.
constexpr std::int64_t kUnitGroups = 16, kGroups = 256, kColumns = 4 * kGroups, kRows = 8;
constexpr std::int64_t kTokens = cpu::kTokenLanes;  // of a row of PackedJob::packed
constexpr int kPassTokens = 4;

// Rows of W from the groups of a pass on, and what they are multiplied by.
template <class T>
struct Rows {
  const T* values;
  const std::uint8_t* positions;
  std::int64_t row_values, row_bytes;
  const float* dy;  // [rows][kTokens]
  std::int64_t rows;
};

// Adds kStrips strips of the rows to sums [kPassTokens][kColumns].
template <int kCount, int kStrips, bool kWhole, class T>
[[gnu::always_inline]] inline void add_strips(const Rows<T>& of, float* sums) {
  Vec acc[kCount][kStrips];
  unroll<kCount>(SPARSELOOM_UNROLLED(t) {
    unroll<kStrips>(SPARSELOOM_UNROLLED(s) { acc[t.value][s.value] = zero(); });
  });
  const T* values = of.values;
  const std::uint8_t* positions = of.positions;
  const float* dy = of.dy;
  for (std::int64_t r = 0; r < of.rows; ++r, dy += kTokens) {
    Vec gradients[kCount];
    unroll<kCount>(SPARSELOOM_UNROLLED(t) { gradients[t.value] = splat(dy + t.value); });
    // The next block's, of which no hardware prefetcher knows where it is.
    const auto* const ahead = reinterpret_cast<const std::byte*>(values + kRows * of.row_values);
    for (std::size_t i = 0; i < 4 * kStrips * sizeof(T); i += 64) __builtin_prefetch(ahead + i);
    __builtin_prefetch(positions + kRows * of.row_bytes);
    unroll<kStrips>(SPARSELOOM_UNROLLED(s) {
      const Vec weights = strip_of<kWhole>(values + 4 * s.value, positions[s.value]);
      unroll<kCount>(SPARSELOOM_UNROLLED(t) {
        acc[t.value][s.value] = fma(acc[t.value][s.value], gradients[t.value], weights);
      });
    });
    values += of.row_values, positions += of.row_bytes;
  }
  unroll<kCount>(SPARSELOOM_UNROLLED(t) {
    unroll<kStrips>(SPARSELOOM_UNROLLED(s) {
      float* const at = sums + t.value * kColumns + s.value * kLanes;
      avx2::store(at, avx2::load(at) + acc[t.value][s.value]);
    });
  });
}

// The rows of a block times kCount tokens.
template <int kCount, class T>
void add_block(Rows<T> of, std::int64_t groups, float* sums) {
  // Chains of additions enough to hide their latency, and registers for them.
  constexpr int kStrips = kCount == 1 ? 8 : kCount == 2 ? 4 : kCount == 3 ? 4 : 2;
  const auto move = [&](std::int64_t strips) {
    of.values += 4 * strips, of.positions += strips, sums += kLanes * strips, groups -= 2 * strips;
  };
  for (; groups >= 2 * kStrips; move(kStrips)) add_strips<kCount, kStrips, true>(of, sums);
  for (; groups >= 2; move(1)) add_strips<kCount, 1, true>(of, sums);
  if (groups == 1) add_strips<kCount, 1, false>(of, sums);
}

// The columns of the groups [begin, end).
template <class T>
void strips_columns(const cpu::PackedJob& job, std::int64_t begin, std::int64_t end) {
  const MatmulArgs& args = job.args;
  const Semi24View& w = job.w;
  constexpr std::int64_t kFloats = kTokens * kColumns;
  alignas(64) float sums[kFloats], total[kFloats];
  in_blocks(w.rows, kRows, core::round_up(args.m, std::int64_t{kPassTokens}) * kColumns, sums, total,
            [&](std::int64_t row) {
              Rows<T> of{static_cast<const T*>(args.values) + row * w.row_values() + 2 * begin,
                         w.positions + row * w.position_bytes() + begin / 2,
                         w.row_values(),
                         w.position_bytes(),
                         job.packed + row * kTokens,
                         std::min(kRows, w.rows - row)};
              for (std::int64_t t = 0; t < args.m; t += kPassTokens, of.dy += kPassTokens)
                unroll<kPassTokens>(SPARSELOOM_UNROLLED(c) {
                  constexpr int kCount = c.value + 1;
                  if (std::min<std::int64_t>(kPassTokens, args.m - t) == kCount)
                    add_block<kCount>(of, end - begin, sums + t * kColumns);
                });
            });
  const std::int64_t column = 4 * begin, columns = std::min(4 * end, w.cols) - column;
  alignas(64) float tile[kFloats];
  for (std::int64_t c = 0; c < core::round_up(columns, kLanes); ++c)
    for (std::int64_t t = 0; t < args.m; ++t) tile[c * kTokens + t] = sums[t * kColumns + c];
  cpu::write_tile({tile, kTokens, args.m, columns, args.dtype, args.activation, nullptr,
                   static_cast<T*>(args.out) + column, args.out_stride});
}

template <class T>
void strips_units(const cpu::PackedJob& job, std::int64_t begin, std::int64_t end) {
  const std::int64_t last = std::min(end * kUnitGroups, job.w.groups());
  for (std::int64_t group = begin * kUnitGroups; group < last; group += kGroups)
    strips_columns<T>(job, group, std::min(group + kGroups, last));
}

template <class T>
void pack_strips_dy(const cpu::PackedJob& job, std::int64_t begin, std::int64_t end) {
  pack_tokens<T>(job.args, job.w.rows, job.w.rows, 1, begin, end, job.packed);
}
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs strips_runs{"avx2_strips"};

template <class T>
static constexpr PackedOps kOps{&strips_runs,         Direction::dx, kTokenLanes,
                                avx2::kUnitGroups,    vector_floats, avx2::pack_strips_dy<T>,
                                avx2::strips_units<T>};

const PackedOps* strips_avx2(DType dtype) noexcept {
  return of_dtype(dtype, kOps<float>, kOps<F16>, kOps<Bf16>);
}
}  // namespace sparseloom::kernels::cpu

#endif
