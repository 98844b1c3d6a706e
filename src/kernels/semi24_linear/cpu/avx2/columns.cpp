// avx2_columns: dX of 2:4 weights, up to 96 tokens on the lanes, in fp32. W is read by rows and multiplied by
// columns: an unpacked W would cost twice the products.
#if defined(__x86_64__)

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

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

static_assert(kLanes == cpu::kTokenLanes);
// Groups of a unit, an even number: its sorted elements take 70 kB.
constexpr std::int64_t kGroups = 16, kColumns = 4 * kGroups;
// Most bytes of dY in one block of rows, which stay in L1 for a unit, and most rows of a block.
constexpr std::int64_t kBlockBytes = 24 << 10, kMostRows = 128;
// Most bytes of a unit's sums: W is sorted once for their tokens.
constexpr std::int64_t kSumBytes = 160 << 10;
// Rows between a prefetch and its use, some 100 cycles of stored elements each. They come from L2, where the
// products of the block before had them fetched.
constexpr std::int64_t kRowsAhead = 4;

/// A stored element: its value, and where its row's gradients begin in the block, in bytes.
struct Element {
  float value;
  std::uint32_t row;
};

/// The elements of a block of rows by column, rows ascending. A column has another cache set than the next.
struct Sorted {
  static constexpr std::int64_t kColumn = kMostRows + 8;
  alignas(64) Element elements[kColumns * kColumn];
  std::uint32_t ends[kColumns];  // of a column's elements, counted from the first column's
};

// Fetches a unit's part of a row of W: no hardware prefetcher continues from one row to the next.
template <class T, int kLocality>
[[gnu::always_inline]] inline void prefetch_row(const cpu::PackedJob& job, std::int64_t row,
                                                std::int64_t begin) {
  const Semi24View& w = job.w;
  const auto* const values = reinterpret_cast<const std::byte*>(static_cast<const T*>(job.args.values) +
                                                                row * w.row_values() + 2 * begin);
  constexpr std::size_t kBytes = 2 * kGroups * sizeof(T);
  for (std::size_t i = 0; i < kBytes; i += 64) __builtin_prefetch(values + i, 0, kLocality);
  __builtin_prefetch(values + kBytes - 1, 0, kLocality);  // a row need not begin with a line
  __builtin_prefetch(w.positions + row * w.position_bytes() + begin / 2, 0, kLocality);
}

// Sorts the groups [begin, end) of the rows [row, row + rows). row_bytes: of one row's gradients.
template <class T>
void sort_block(const cpu::PackedJob& job, std::int64_t row, std::int64_t rows, std::int64_t begin,
                std::int64_t end, std::uint32_t row_bytes, Sorted& sorted) {
  const Semi24View& w = job.w;
  alignas(32) float wide[2 * kGroups];
  for (std::int64_t c = 0; c < kColumns; ++c)
    sorted.ends[c] = static_cast<std::uint32_t>(c * Sorted::kColumn);
  std::uint64_t at = 0;
  for (std::int64_t r = row; r < row + rows; ++r, at += row_bytes) {
    const T* const values = static_cast<const T*>(job.args.values) + r * w.row_values() + 2 * begin;
    const std::uint8_t* positions = w.positions + r * w.position_bytes() + begin / 2;
    prefetch_row<T, 3>(job, r + kRowsAhead, begin);
    const float* value = in_fp32(values, 2 * (end - begin), wide);
    const auto add = [&](std::uint32_t * column, const float* from) __attribute__((always_inline)) {
      std::uint32_t bits;
      std::memcpy(&bits, from, 4);
      const std::uint64_t element = bits | at << 32;
      std::memcpy(static_cast<void*>(sorted.elements + (*column)++), &element, 8);
    };
    std::uint32_t* column = sorted.ends;
    const auto group = [&](unsigned bits) __attribute__((always_inline)) {
      add(column + (bits & 3u), value), add(column + (bits >> 2 & 3u), value + 1);
      column += 4, value += 2;
    };
    std::int64_t g = begin;
    for (; g + 2 <= end; g += 2) {
      const unsigned both = *positions++;
      group(both), group(both >> 4);
    }
    if (g < end) group(*positions);
  }
}

// Adds the elements [element, end) of a column, times the gradients dy of their rows, to its sums
// [kVectors][lanes].
template <int kVectors>
[[gnu::always_inline]] inline void add_column(const Element* element, const Element* end, const std::byte* dy,
                                              float* sums) {
  // An addition waits four cycles for the previous one to the same sum: few vectors have two or four sums.
  constexpr int kSums = kVectors <= 3 ? 4 : kVectors <= 6 ? 2 : 1;
  Vec acc[kSums][kVectors];
  unroll<kSums>(SPARSELOOM_UNROLLED(s) {
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) { acc[s.value][v.value] = zero(); });
  });
  const auto add = [&](auto s) __attribute__((always_inline)) {
    const Element* const one = element + s.value;
    const auto* const gradients = reinterpret_cast<const float*>(dy + one->row);
    const Vec weight = splat(&one->value);
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
      Vec& sum = acc[s.value][v.value];
      sum = fma(sum, avx2::load(gradients + v.value * kLanes), weight);
    });
  };
  for (; end - element >= kSums; element += kSums) unroll<kSums>(add);
  if constexpr (kSums > 1)
    for (; element < end; ++element) add(std::integral_constant<int, 0>{});
  unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
    Vec sum = acc[0][v.value];
    if constexpr (kSums == 2) sum = sum + acc[1][v.value];
    if constexpr (kSums == 4) sum = (sum + acc[1][v.value]) + (acc[2][v.value] + acc[3][v.value]);
    float* const at = sums + v.value * kLanes;
    avx2::store(at, avx2::load(at) + sum);
  });
}

// The columns of the groups [begin, end) for the panels [panel, last).
template <class T, int kVectors>
void columns_unit(const cpu::PackedJob& job, std::int64_t begin, std::int64_t end, std::int64_t panel,
                  std::int64_t last) {
  constexpr std::int64_t kTokens = kVectors * kLanes, kRow = kTokens * cpu::kCellBytes;
  constexpr std::int64_t kRows = std::min(kMostRows, kBlockBytes / kRow), kPanel = kColumns * kTokens;
  const MatmulArgs& args = job.args;
  const Semi24View& w = job.w;
  const std::int64_t columns = std::min(4 * end, w.cols) - 4 * begin;
  alignas(64) float tile[kSumBytes / cpu::kCellBytes], total[kSumBytes / cpu::kCellBytes];
  Sorted sorted;
  in_blocks(w.rows, kRows, (last - panel) * kPanel, tile, total, [&](std::int64_t row) {
    sort_block<T>(job, row, std::min(kRows, w.rows - row), begin, end, kRow, sorted);
    for (std::int64_t p = panel; p < last; ++p) {
      const auto* const dy =
          reinterpret_cast<const std::byte*>(job.packed + (p * cpu::panel_depth(w.rows) + row) * kTokens);
      // The block after this one: its rows are read in no order that a hardware prefetcher knows.
      const std::byte* const next = p + 1 < last
                                        ? dy + cpu::panel_depth(w.rows) * kRow
                                        : dy + (kRows - (last - 1 - panel) * cpu::panel_depth(w.rows)) * kRow;
      constexpr std::int64_t kShare = kRows * kRow / kColumns;
      for (std::int64_t c = 0; c < columns; ++c) {
        for (std::int64_t i = 0; i < kShare; i += 64) __builtin_prefetch(next + c * kShare + i, 0, 2);
        if (p == panel)
          for (std::int64_t r = c; r < kRows; r += kColumns) prefetch_row<T, 2>(job, row + kRows + r, begin);
        add_column<kVectors>(sorted.elements + c * Sorted::kColumn, sorted.elements + sorted.ends[c], dy,
                             tile + (p - panel) * kPanel + c * kTokens);
      }
    }
  });
  for (std::int64_t p = panel; p < last; ++p) {
    const std::int64_t token = p * kTokens;
    cpu::write_tile({tile + (p - panel) * kPanel, kTokens, std::min(kTokens, args.m - token), columns,
                     args.dtype, args.activation, nullptr,
                     static_cast<T*>(args.out) + token * args.out_stride + 4 * begin, args.out_stride});
  }
}

template <class T>
void columns_units(const cpu::PackedJob& job, std::int64_t begin, std::int64_t end) {
  const cpu::Panels of(job.args.m);
  for (std::int64_t unit = begin; unit < end; ++unit) {
    const std::int64_t group = unit * kGroups, stop = std::min(group + kGroups, job.w.groups());
    unroll<cpu::kPanelVectors>(SPARSELOOM_UNROLLED(v) {
      constexpr int kVectors = v.value + 1;
      constexpr std::int64_t kMost = kSumBytes / (kColumns * kVectors * kLanes * cpu::kCellBytes);
      if (of.vectors != kVectors) return;
      const std::int64_t panels = of.panels, parts = core::ceil_div(panels, kMost);
      for (std::int64_t part = 0; part < parts; ++part)
        columns_unit<T, kVectors>(job, group, stop, part * panels / parts, (part + 1) * panels / parts);
    });
  }
}

template <class T>
void pack_columns_dy(const cpu::PackedJob& job, std::int64_t begin, std::int64_t end) {
  const std::int64_t depth = cpu::panel_depth(job.w.rows);
  pack_tokens<T>(job.args, job.w.rows, depth, cpu::Panels(job.args.m).vectors, begin, end, job.packed);
}
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs columns_runs{"avx2_columns"};

template <class T>
static constexpr PackedOps kOps{&columns_runs,         Direction::dx, kTokenLanes,
                                avx2::kGroups,         panel_floats,  avx2::pack_columns_dy<T>,
                                avx2::columns_units<T>};

const PackedOps* columns_avx2(DType dtype) noexcept {
  return of_dtype(dtype, kOps<float>, kOps<F16>, kOps<Bf16>);
}
}  // namespace sparseloom::kernels::cpu

#endif
