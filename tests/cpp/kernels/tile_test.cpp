// How finished outputs leave: the same bytes by AVX-512 as by AVX2, and past the caches as through them.
#if defined(__x86_64__)

#include "kernels/shared/cpu/tile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/bsr_linear/cpu/deferred_lines.h"
#include "kernels/case.h"
#include "runtime/cpu.h"

namespace sparseloom::testing {
namespace {

using kernels::cpu::DeferredLines;

constexpr std::int64_t kTokens = 48, kOutputs = 40, kStride = 43;

std::vector<float> odd_sums() {
  std::vector<float> tile(kOutputs * kTokens);
  for (std::size_t i = 0; i < tile.size(); ++i)
    tile[i] = static_cast<float>(static_cast<int>(i * 37 % 301) - 150) * 0.031f;
  // What rounding to 16 bits must get right: ties, overflow, denormals of either type, infinity, NaN (a
  // negative one's sign after an activation is the compiler's choice of operands).
  const float special[] = {0x1.01p0f,
                           0x1.03p0f,
                           0x1.002p0f,
                           3.4e38f,
                           -3.4e38f,
                           65520.0f,
                           0x1p-126f,
                           0x1.8p-133f,
                           0x1p-149f,
                           -0.0f,
                           std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::quiet_NaN()};
  for (std::size_t i = 0; i < std::size(special); ++i) tile[i * 53] = special[i];
  return tile;
}

TEST(WriteTile, Avx512WritesWhatAvx2Writes) {
  if (!runtime::active_isa().has(runtime::Isa::avx512)) GTEST_SKIP() << "no AVX-512";
  const std::vector<float> tile = odd_sums();
  std::vector<float> scale(kOutputs);
  for (std::size_t i = 0; i < scale.size(); ++i) scale[i] = 0.5f + static_cast<float>(i);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Matrix bias(dtype, 1, kOutputs, 0), residual(dtype, kTokens, kStride, 0);
    for (std::int64_t o = 0; o < kOutputs; ++o) bias.set(0, o, 0.25 * static_cast<double>(o));
    for (std::int64_t t = 0; t < kTokens; ++t)
      for (std::int64_t o = 0; o < kStride; ++o)
        residual.set(t, o, static_cast<double>(t) - static_cast<double>(o) * 0.5);
    for (const Activation activation : activations())
      for (const std::int64_t tokens : {1, 7, 16, 43, 48})
        for (const std::int64_t outputs : {1, 8, 13, 16, 31, 32, 40})
          for (const bool all : {false, true}) {
            kernels::cpu::TileOut out{
                tile.data(), kTokens, tokens, outputs, dtype, activation, all ? bias.data() : nullptr,
                nullptr,     kStride};
            if (all) out.scale = scale.data(), out.residual = residual.data(), out.residual_stride = kStride;
            Matrix wide(dtype, kTokens, kStride, 0), narrow = wide;
            out.out = wide.data();
            kernels::cpu::write_tile(out);
            out.out = narrow.data();
            kernels::cpu::kAvx2Tile.write(out);
            ASSERT_EQ(wide.bytes, narrow.bytes)
                << name_of(dtype) << " " << tokens << " x " << outputs << " " << all;
          }
  }
}

struct Buffer {
  static constexpr std::int64_t kRows = 64, kRowBytes = 256;
  alignas(64) std::byte bytes[kRows * kRowBytes];
  Buffer() { std::fill_n(bytes, sizeof bytes, kPoison); }
};

// Rows of one or two cache lines, sent all at once, a few at a time, or when the next ones come.
TEST(DeferredLines, ReachTheirRowsAndNothingElse) {
  for (const std::int64_t bytes : {64, 128})
    for (const std::int64_t count : {1, 47, 64})
      for (const std::int64_t times : {1, 5, 1000}) {
        Buffer first, second;
        DeferredLines block_rows;
        EXPECT_EQ(DeferredLines::pace(&block_rows, times), 0);
        const auto fill = [&](Buffer& buffer, std::byte value) {
          const auto rows =
              DeferredLines::rows_of(&block_rows, {buffer.bytes + 64, Buffer::kRowBytes}, bytes, count);
          ASSERT_NE(rows.out, buffer.bytes + 64);
          for (std::int64_t i = 0; i < count; ++i) std::fill_n(rows.out + i * rows.stride, bytes, value);
        };
        fill(first, std::byte{1});
        const std::int64_t pace = DeferredLines::pace(&block_rows, times);
        for (std::int64_t i = 0; i < times; ++i) block_rows.send(pace);
        EXPECT_EQ(block_rows.left(), 0);
        fill(first, std::byte{2});
        block_rows.send(1);
        EXPECT_EQ(block_rows.left(), bytes / 64 * count - 1);
        fill(second, std::byte{3});  // the rest of the twos leaves
        block_rows.finish();
        for (std::int64_t i = 0; i < Buffer::kRows * Buffer::kRowBytes; ++i) {
          const std::int64_t column = i % Buffer::kRowBytes - 64;
          const bool written = i / Buffer::kRowBytes < count && column >= 0 && column < bytes;
          ASSERT_EQ(first.bytes[i], written ? std::byte{2} : kPoison) << i;
          ASSERT_EQ(second.bytes[i], written ? std::byte{3} : kPoison) << i;
        }
      }
}

TEST(DeferredLines, OnlyWholeLinesLeavePastTheCaches) {
  Buffer buffer;
  DeferredLines lines;
  const auto stay = [&](DeferredLines* to, std::int64_t shift, std::int64_t stride, std::int64_t bytes,
                        std::int64_t count) {
    const auto rows = DeferredLines::rows_of(to, {buffer.bytes + shift, stride}, bytes, count);
    return rows.out == buffer.bytes + shift && rows.stride == stride;
  };
  EXPECT_FALSE(stay(&lines, 64, 128, 64, 4));
  EXPECT_TRUE(stay(nullptr, 64, 128, 64, 4));
  EXPECT_TRUE(stay(&lines, 32, 128, 64, 4));
  EXPECT_TRUE(stay(&lines, 64, 96, 64, 2));
  EXPECT_TRUE(stay(&lines, 64, 128, 48, 4));
  EXPECT_TRUE(stay(&lines, 64, 64, 64, DeferredLines::kMost + 1));
  EXPECT_EQ(DeferredLines::pace(nullptr, 3), 0);
}

}  // namespace
}  // namespace sparseloom::testing

#endif
