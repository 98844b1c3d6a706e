// avx2_select: two rows of W on the lanes, in fp32. VPERMILPS selects one of four numbers per lane; eight
// lanes are two groups, of which each of two rows stores two elements.
#if defined(__x86_64__)

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

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
// clang-format on

constexpr std::int64_t kChunk = 8;  // groups of one step
static_assert(kChunk == 8, "a row's positions of a step are 4 bytes");
constexpr int kVectors = 4;          // vectors per step, each of two groups of both rows
constexpr std::int64_t kToken = 32;  // numbers of x per token and step
// Tokens multiplied by a unit's rows of W before the next tokens, and outputs of a unit. Their sums and one
// block of x are in L1; the more outputs, the more often a block of x is used before the next one comes.
constexpr std::int64_t kTileTokens = 16, kOutputs = 32;
// Tokens per pass over two rows: their sums and a step's operands of W fill the registers.
constexpr int kPassTokens = 8;
// Most bytes of x in one block of columns. The sums of a unit are beside it in L1.
constexpr std::int64_t kBlockBytes = 16 << 10;

// The operands of a step: vectors with the elements 0 and 1 of a group of row 0, of the same group of row 1,
// and four more of another group. kGroups[j]: the two groups of vector j, in the order that is cheapest to
// widen.
template <class T>
struct Stored;

[[gnu::always_inline]] inline __m256i load_bits(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i_u*>(p));
}

template <>
struct Stored<cpu::Bf16> {
  static constexpr int kGroups[kVectors][2] = {{0, 4}, {1, 5}, {2, 6}, {3, 7}};
  __m256i low, high;
  [[gnu::always_inline]] Stored(const cpu::Bf16* a, const cpu::Bf16* b)
      : low(_mm256_unpacklo_epi32(load_bits(a), load_bits(b))),
        high(_mm256_unpackhi_epi32(load_bits(a), load_bits(b))) {}
  template <int j>
  [[gnu::always_inline]] Vec at() const {
    const __m256i pairs = j < 2 ? low : high, none = _mm256_setzero_si256();
    return _mm256_castsi256_ps(j % 2 == 0 ? _mm256_unpacklo_epi16(none, pairs)
                                          : _mm256_unpackhi_epi16(none, pairs));
  }
};

template <>
struct Stored<cpu::F16> {
  static constexpr int kGroups[kVectors][2] = {{0, 1}, {4, 5}, {2, 3}, {6, 7}};
  __m256i low, high;
  [[gnu::always_inline]] Stored(const cpu::F16* a, const cpu::F16* b)
      : low(_mm256_unpacklo_epi32(load_bits(a), load_bits(b))),
        high(_mm256_unpackhi_epi32(load_bits(a), load_bits(b))) {}
  template <int j>
  [[gnu::always_inline]] Vec at() const {
    return _mm256_cvtph_ps(_mm256_extracti128_si256(j < 2 ? low : high, j % 2));
  }
};

template <>
struct Stored<float> {
  static constexpr int kGroups[kVectors][2] = {{0, 2}, {1, 3}, {4, 6}, {5, 7}};
  const float *a, *b;
  [[gnu::always_inline]] Stored(const float* first, const float* second) : a(first), b(second) {}
  template <int j>
  [[gnu::always_inline]] Vec at() const {
    const __m256d of_a = _mm256_castps_pd(_mm256_loadu_ps(a + j / 2 * 8)),
                  of_b = _mm256_castps_pd(_mm256_loadu_ps(b + j / 2 * 8));
    return _mm256_castpd_ps(j % 2 == 0 ? _mm256_unpacklo_pd(of_a, of_b) : _mm256_unpackhi_pd(of_a, of_b));
  }
};

// The positions of 8 groups of both rows. VPERMILPS reads the two lowest bits of each lane.
struct Picks {
  __m256i positions;
  [[gnu::always_inline]] Picks(const std::uint8_t* a, const std::uint8_t* b) {
    int of_a, of_b;
    std::memcpy(&of_a, a, 4);
    std::memcpy(&of_b, b, 4);
    positions = _mm256_blend_epi32(_mm256_set1_epi32(of_a), _mm256_set1_epi32(of_b), 0b11001100);
  }
  template <int first, int second>
  [[gnu::always_inline]] __m256i of_groups() const {
    constexpr int a = 4 * first, b = 4 * second;
    return _mm256_srlv_epi32(positions, _mm256_setr_epi32(a, a + 2, a, a + 2, b, b + 2, b, b + 2));
  }
};

// Adds a step of two rows to the sums of kTokens tokens. Few tokens have several sums each, used in turn: an
// addition waits four cycles for the previous one.
template <class T, int kTokens, int kSums>
[[gnu::always_inline]] inline void step(const T* const (&values)[2],
                                        const std::uint8_t* const (&positions)[2], const float* x,
                                        Vec (&acc)[kTokens][kSums]) {
  const Stored<T> stored(values[0], values[1]);
  const Picks picks(positions[0], positions[1]);
  unroll<kVectors>(SPARSELOOM_UNROLLED(j) {
    constexpr auto& groups = Stored<T>::kGroups[j.value];
    const Vec w = stored.template at<j.value>();
    const __m256i from = picks.of_groups<groups[0], groups[1]>();
    unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
      const Vec four = avx2::load(x + t.value * kToken + j.value * kLanes);
      Vec& sum = acc[t.value][j.value % kSums];
      sum = fma(sum, _mm256_permutevar_ps(four, from), w);
    });
  });
}

// Two rows of W, of which the second may be the first again, in one block of columns.
template <class T>
struct Rows {
  const cpu::PackedJob& job;
  const T* values[2];
  const std::uint8_t* positions[2];
  std::int64_t begin, end;  // groups
  // The distance from these rows' values and positions to those of the next block, which is prefetched: past
  // some hundred bytes of a row no hardware prefetcher continues to the next row.
  std::int64_t values_ahead, positions_ahead;

  // Adds to sums [tokens][lanes] of the tokens from `token` on. Each block's sums begin at zero, which keeps
  // the chains of additions short (chain-inl.h).
  template <int kTokens>
  void add(std::int64_t token, float* sums) const {
    constexpr int kSums = std::max(1, std::min(kVectors, 8 / kTokens));
    Vec acc[kTokens][kSums];
    unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
      unroll<kSums>(SPARSELOOM_UNROLLED(s) { acc[t.value][s.value] = zero(); });
    });
    const std::int64_t floats = job.args.m * kToken;  // floats of x per step
    const float* x = job.packed + begin / kChunk * floats + token * kToken;
    for (std::int64_t i = begin / 2; i < (end + 1) / 2; i += 64)
      for (const std::uint8_t* row : positions) __builtin_prefetch(row + i + positions_ahead);
    std::int64_t g = begin;
    for (; g + kChunk <= end; g += kChunk, x += floats) {
      const T* const at[2] = {values[0] + 2 * g, values[1] + 2 * g};
      const std::uint8_t* const of[2] = {positions[0] + g / 2, positions[1] + g / 2};
      for (const T* row : at) {
        __builtin_prefetch(row + values_ahead);
        if constexpr (sizeof(T) == 4) __builtin_prefetch(row + values_ahead + 8);
      }
      step<T, kTokens, kSums>(at, of, x, acc);
    }
    if (g < end) {  // the rows' end, followed by the next row or nothing
      T rest[2][2 * kChunk] = {};
      std::uint8_t halves[2][kChunk / 2] = {};
      for (int r = 0; r < 2; ++r) {
        std::memcpy(static_cast<void*>(rest[r]), static_cast<const void*>(values[r] + 2 * g),
                    static_cast<std::size_t>(2 * (end - g)) * sizeof(T));
        std::memcpy(halves[r], positions[r] + g / 2, static_cast<std::size_t>((end - g + 1) / 2));
      }
      const T* const at[2] = {rest[0], rest[1]};
      const std::uint8_t* const of[2] = {halves[0], halves[1]};
      step<T, kTokens, kSums>(at, of, x, acc);
    }
    unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
      Vec sum = acc[t.value][0];
      unroll<kSums - 1>(SPARSELOOM_UNROLLED(s) { sum = sum + acc[t.value][s.value + 1]; });
      avx2::store(sums + t.value * kLanes, avx2::load(sums + t.value * kLanes) + sum);
    });
  }

  void add_tokens(std::int64_t begin_token, std::int64_t end_token, float* sums) const {
    for (std::int64_t token = begin_token; token < end_token;
         token += kPassTokens, sums += kPassTokens * kLanes) {
      const std::int64_t left = std::min<std::int64_t>(kPassTokens, end_token - token);
      unroll<kPassTokens>(SPARSELOOM_UNROLLED(t) {
        if (left == t.value + 1) add<t.value + 1>(token, sums);
      });
    }
  }
};

// The outputs [output, output + outputs) of the tokens [token, token + tokens).
template <class T>
void select_tile(const cpu::PackedJob& job, std::int64_t output, std::int64_t outputs, std::int64_t token,
                 std::int64_t tokens) {
  const MatmulArgs& args = job.args;
  const Semi24View& w = job.w;
  const std::int64_t groups = w.groups();
  const std::int64_t block = kBlockBytes / (tokens * kToken * cpu::kCellBytes) * kChunk;
  alignas(64) float sums[kOutputs / 2][kTileTokens * kLanes] = {};
  for (std::int64_t g = 0; g < groups; g += block)
    for (std::int64_t o = 0; o < outputs; o += 2) {
      const std::int64_t row[2] = {output + o, output + std::min(o + 1, outputs - 1)};
      const auto* const values = static_cast<const T*>(args.values);
      // After the unit's last rows come its first ones again, at the next block.
      const bool last = o + 2 >= outputs && g + block < groups;
      const std::int64_t down = last ? -o : 2, right = last ? block : 0;
      Rows<T>{job,
              {values + row[0] * w.row_values(), values + row[1] * w.row_values()},
              {w.positions + row[0] * w.position_bytes(), w.positions + row[1] * w.position_bytes()},
              g,
              std::min(g + block, groups),
              down * w.row_values() + 2 * right,
              down * w.position_bytes() + right / 2}
          .add_tokens(token, token + tokens, sums[o / 2]);
    }
  alignas(64) float tile[kOutputs * kTileTokens] = {};
  for (std::int64_t o = 0; o < outputs; o += 2)
    for (std::int64_t t = 0; t < tokens; ++t) {
      const float* const lanes = sums[o / 2] + t * kLanes;
      float* const out = tile + o * kTileTokens + t;
      out[0] = (lanes[0] + lanes[1]) + (lanes[4] + lanes[5]);
      out[kTileTokens] = (lanes[2] + lanes[3]) + (lanes[6] + lanes[7]);
    }
  const auto* const residual = static_cast<const T*>(args.residual);
  cpu::write_tile({tile, kTileTokens, tokens, outputs, args.dtype, args.activation,
                   args.bias ? static_cast<const T*>(args.bias) + output : nullptr,
                   static_cast<T*>(args.out) + token * args.out_stride + output, args.out_stride, nullptr,
                   residual ? residual + token * args.residual_stride + output : nullptr,
                   args.residual_stride});
}

template <class T>
void select_units(const cpu::PackedJob& job, std::int64_t begin, std::int64_t end) {
  for (std::int64_t unit = begin; unit < end; ++unit) {
    const std::int64_t output = unit * kOutputs,
                       outputs = std::min<std::int64_t>(kOutputs, job.w.rows - output);
    // A unit's rows of W stay in L2 for the later tokens.
    for (std::int64_t token = 0; token < job.args.m; token += kTileTokens)
      select_tile<T>(job, output, outputs, token, std::min<std::int64_t>(kTileTokens, job.args.m - token));
  }
}

// Numbers of x as it is packed: [steps][tokens][kToken].
std::int64_t select_floats(std::int64_t m, std::int64_t cols) { return m * core::round_up(cols, kToken); }

// Writes x of the columns [begin, end): four vectors per token and step, whose halves are the columns of the
// groups in the order of Stored<T>.
template <class T>
void pack_select_x(const cpu::PackedJob& job, std::int64_t begin, std::int64_t end) {
  float* out = job.packed + begin * job.args.m;
  for (std::int64_t column = begin; column < end; column += kToken) {
    const std::int64_t count = std::min(kToken, job.w.cols - column);
    for (std::int64_t t = 0; t < job.args.m; ++t, out += kToken) {
      const T* const from = static_cast<const T*>(job.args.a) + t * job.args.a_stride + column;
      alignas(32) float wide[kToken];
      for (std::int64_t i = 0; i < kToken; i += kLanes)
        avx2::store(wide + i, i + kLanes <= count ? widen(from + i)
                              : i < count         ? widen_first(from + i, count - i)
                                                  : zero());
      for (int j = 0; j < kVectors; ++j)
        for (int half = 0; half < 2; ++half)
          std::memcpy(out + j * kLanes + 4 * half, wide + 4 * Stored<T>::kGroups[j][half], 16);
    }
  }
}
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs select_runs{"avx2_select"};

template <class T>
static constexpr PackedOps kOps{&select_runs,         Direction::forward,  avx2::kToken,
                                avx2::kOutputs,       avx2::select_floats, avx2::pack_select_x<T>,
                                avx2::select_units<T>};

const PackedOps* select_avx2(DType dtype) noexcept {
  return of_dtype(dtype, kOps<float>, kOps<F16>, kOps<Bf16>);
}
}  // namespace sparseloom::kernels::cpu

#endif
