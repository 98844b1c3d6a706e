#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/expect_error.h"
#include "pattern/pictures.h"
#include "sparseloom/generic/half.h"
#include "sparseloom/layout.h"

namespace sparseloom {
namespace {

using test::expect_error;

std::vector<float> scores_of(const ConstMatrixView& dense, BlockShape block, BlockNorm norm) {
  const BlockPattern grid(dense.rows, dense.cols, block);
  std::vector<float> scores(static_cast<std::size_t>(grid.block_rows() * grid.block_cols()), -1);
  block_scores(dense, block, norm, scores);
  return scores;
}

// 9 x 10 in blocks of 8 x 8: heights 8, 1 and widths 8, 2. Row gap of 100s, which must not count.
TEST(BlockScores, CountEachElementOnceAndNoPadding) {
  std::vector<float> dense(9 * 12, 100);
  for (int r = 0; r < 9; ++r) {
    for (int c = 0; c < 10; ++c) dense[r * 12 + c] = (r + c) % 2 ? -2 : 2;
  }
  dense[8 * 12 + 9] = -3;
  const ConstMatrixView view{dense.data(), DType::f32, 9, 10, 12};
  EXPECT_EQ(scores_of(view, {8, 8}, BlockNorm::l1), (std::vector<float>{128, 32, 16, 5}));
  EXPECT_EQ(scores_of(view, {8, 8}, BlockNorm::max), (std::vector<float>{2, 2, 2, 3}));
  EXPECT_EQ(scores_of(view, {8, 8}, BlockNorm::l2),
            (std::vector<float>{16, 8, std::sqrt(32.0f), std::sqrt(13.0f)}));
}

TEST(BlockScores, ReadEveryDtype) {
  std::vector<core::F16> f16(64, core::to_f16(-1.5f));
  std::vector<core::Bf16> bf16(64, core::to_bf16(-1.5f));
  std::vector<double> f64(64, -1.5);
  EXPECT_EQ(scores_of({f16.data(), DType::f16, 8, 8, 8}, {8, 8}, BlockNorm::l1), std::vector<float>{96});
  EXPECT_EQ(scores_of({bf16.data(), DType::bf16, 8, 8, 8}, {8, 8}, BlockNorm::l2), std::vector<float>{12});
  EXPECT_EQ(scores_of({f64.data(), DType::f64, 8, 8, 8}, {8, 8}, BlockNorm::max), std::vector<float>{1.5});
}

// In fp32 the sum would stop at 2^24.
TEST(BlockScores, SumInDouble) {
  std::vector<float> dense(128 * 128, 1);
  dense[0] = 0x1p24f;
  EXPECT_EQ(scores_of({dense.data(), DType::f32, 128, 128, 128}, {128, 128}, BlockNorm::l1),
            std::vector<float>{0x1p24f + 16384});
}

TEST(BlockScores, PassNanOnForTopKToRefuse) {
  for (const BlockNorm norm : {BlockNorm::l1, BlockNorm::l2, BlockNorm::max}) {
    for (const int at : {0, 1, 63}) {
      std::vector<float> dense(64 * 2, 7);
      dense[at / 8 * 16 + 8 + at % 8] = std::numeric_limits<float>::quiet_NaN();
      const std::vector<float> scores = scores_of({dense.data(), DType::f32, 8, 16, 16}, {8, 8}, norm);
      EXPECT_FALSE(std::isnan(scores[0]));
      EXPECT_TRUE(std::isnan(scores[1])) << at;
      expect_error("pattern.top_k", {"NaN at scores[1]"}, [&] { pattern::top_k(8, 16, {8, 8}, scores, 1); });
    }
  }
}

TEST(BlockScores, KeepTheHeaviestBlocks) {
  const BlockPattern kept = test::from_picture({"#..#", ".#..", "..##"}, {16, 8});
  std::vector<double> dense(48 * 32);
  for (int r = 0; r < 48; ++r) {
    for (int c = 0; c < 32; ++c) dense[r * 32 + c] = kept.test(r / 16, c / 8) ? -1.0 : 0.5;
  }
  for (const BlockNorm norm : {BlockNorm::l1, BlockNorm::l2, BlockNorm::max}) {
    const std::vector<float> scores = scores_of({dense.data(), DType::f64, 48, 32, 32}, {16, 8}, norm);
    EXPECT_EQ(pattern::top_k(48, 32, {16, 8}, scores, kept.count()), kept);
  }
}

TEST(BlockScores, RefuseWhatDoesNotFit) {
  std::vector<float> dense(64), scores(2);
  const char* op = "block_scores";
  expect_error(op, {"1 scores", "[1, 1]", "got 2"}, [&] {
    block_scores({dense.data(), DType::f32, 8, 8, 8}, {8, 8}, BlockNorm::l1, scores);
  });
  expect_error(op, {"stride of at least 16", "got 8"}, [&] {
    block_scores({dense.data(), DType::f32, 8, 16, 8}, {8, 8}, BlockNorm::l1, scores);
  });
  expect_error(op, {"null pointer"}, [&] {
    block_scores({nullptr, DType::f32, 8, 16, 16}, {8, 8}, BlockNorm::l1, scores);
  });
  expect_error(op, {"got 8x9"}, [&] {
    block_scores({dense.data(), DType::f32, 8, 8, 8}, {8, 9}, BlockNorm::l1, scores);
  });
  block_scores({nullptr, DType::f32, 0, 8, 8}, {8, 8}, BlockNorm::l1, {});  // an empty matrix has no scores
}

}  // namespace
}  // namespace sparseloom
