// What bsr_conv's CUDA rows refuse, choose and predict on a Hopper GPU. They need no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "kernels/bsr_conv/cuda/product.h"
#include "kernels/bsr_conv/rows.h"

namespace sparseloom::testing {
namespace {

const plan::Machine kHopper{runtime::Isa::generic, {}, {90, 132, 50u << 20, 227u << 10, 1.98e9, 3.35e12}};

struct Answer {
  std::string refusal;
  plan::Offer offer;
};

Answer ask(const std::string& name, const bsr_conv::Problem& p, const plan::Machine& machine = kHopper) {
  for (const kernels::ConvRow& row : kernels::conv_cuda_rows()) {
    if (name != row.name) continue;
    Answer answer;
    Proposals<bsr_conv::Conv> out(answer.offer);
    if (const Refusal why = row.propose(p, machine, out)) answer.refusal = why.text();
    return answer;
  }
  ADD_FAILURE() << "no row " << name;
  return {};
}

/// 3 x 3, 64 images, stride 1.
bsr_conv::Problem problem_of(Direction direction, int channels, int extent, int side, std::int64_t blocks) {
  bsr_conv::Problem p;
  p.direction = direction, p.dtype = DType::bf16, p.device = 0;
  p.rows = p.cols = channels, p.block = {side, side}, p.blocks = blocks;
  p.shape.images = 64;
  for (int i = 1; i < 3; ++i) p.shape.axis[i] = {extent, extent, 3, 1, 1, 1};
  p.m = p.shape.out_pixels();
  return p;
}

// Microseconds of sm90_conv on an H200: bench/results/h200/bsr_conv_bfloat16.json.
TEST(CudaConvRows, PredictWithinAThirdOfWhatWasMeasured) {
  const struct {
    Direction direction;
    int channels, extent, side, blocks;
    double us;
  } measured[] = {
      {Direction::forward, 512, 28, 64, 16, 121},   {Direction::dx, 512, 28, 64, 16, 109},
      {Direction::dw, 512, 28, 64, 16, 133},        {Direction::forward, 1024, 14, 64, 64, 110},
      {Direction::dx, 1024, 14, 64, 64, 104},       {Direction::dw, 1024, 14, 64, 64, 113},
      {Direction::forward, 1024, 14, 32, 256, 165}, {Direction::forward, 1024, 14, 32, 512, 220},
  };
  for (const auto& m : measured) {
    const Answer answer = ask("sm90_conv", problem_of(m.direction, m.channels, m.extent, m.side, m.blocks));
    ASSERT_EQ(answer.refusal, "");
    EXPECT_LT(answer.offer.predicted_us, 1.33 * m.us) << m.channels << " " << m.side;
    EXPECT_GT(answer.offer.predicted_us, m.us / 1.33) << m.channels << " " << m.side;
    EXPECT_LT(
        answer.offer.predicted_us,
        ask("sm80_conv", problem_of(m.direction, m.channels, m.extent, m.side, m.blocks)).offer.predicted_us);
  }
}

// Microseconds of sm80_conv on an H200, in problems that do not fill it (docs/log,
// 2026-11-28). By their operations alone they would take 3 to 9.
TEST(CudaConvRows, PredictSmallConvolutions) {
  const struct {
    Direction direction;
    int images, cols, rows, height, width, tap_rows, tap_columns, side, blocks;
    double us;
  } measured[] = {
      {Direction::dx, 2, 256, 1024, 14, 14, 1, 1, 32, 172, 15},
      {Direction::dw, 5, 1024, 256, 14, 14, 1, 1, 32, 59, 25},
      {Direction::forward, 15, 192, 192, 17, 17, 1, 7, 16, 12, 11},
      {Direction::dw, 1, 2048, 256, 33, 33, 3, 3, 128, 9, 31},
      {Direction::forward, 8, 512, 2048, 7, 7, 1, 1, 32, 51, 6},
      {Direction::forward, 2, 333, 777, 14, 15, 1, 1, 128, 8, 19},
  };
  for (const auto& m : measured) {
    bsr_conv::Problem p = problem_of(m.direction, m.cols, 1, m.side, m.blocks);
    p.rows = m.rows, p.shape.images = m.images, p.aligned = m.rows % 8 == 0 && m.cols % 8 == 0;
    p.shape.axis[1] = {m.height, m.height, m.tap_rows, 1, m.tap_rows / 2, 1};
    p.shape.axis[2] = {m.width, m.width, m.tap_columns, 1, m.tap_columns / 2, 1};
    p.m = p.shape.out_pixels();
    const Answer answer = ask("sm80_conv", p);
    ASSERT_EQ(answer.refusal, "");
    EXPECT_LT(answer.offer.predicted_us, 2 * m.us) << m.rows << " " << m.cols;
    EXPECT_GT(answer.offer.predicted_us, m.us / 2) << m.rows << " " << m.cols;
  }
}

// cuDNN on an H200: bench/results/h200/bsr_conv_bfloat16.json.
TEST(CudaConvRows, TheDenseConvolutionIsPredictedToo) {
  const auto dense = [](Direction direction, int channels, int extent) {
    const bsr_conv::DenseTime time =
        kernels::dense_conv_on_device(problem_of(direction, channels, extent, 32, 128), kHopper);
    EXPECT_GT(time.weight_us, 0);
    EXPECT_LT(time.weight_us, time.product_us);
    return time.product_us + time.weight_us;
  };
  EXPECT_NEAR(dense(Direction::forward, 512, 28), 275, 40);
  EXPECT_NEAR(dense(Direction::dx, 1024, 14), 275, 40);
  EXPECT_NEAR(dense(Direction::dw, 512, 28), 312, 40);
  // dW at .5 in blocks of 32 takes 521 us, and 231 in blocks of 64
  EXPECT_GT(ask("sm90_conv", problem_of(Direction::dw, 512, 28, 32, 128)).offer.predicted_us,
            dense(Direction::dw, 512, 28));
  EXPECT_LT(ask("sm90_conv", problem_of(Direction::dw, 512, 28, 64, 32)).offer.predicted_us,
            dense(Direction::dw, 512, 28));
  bsr_conv::Problem p = problem_of(Direction::forward, 512, 28, 32, 128);
  p.dtype = DType::f32;
  EXPECT_EQ(kernels::dense_conv_on_device(p, kHopper).product_us, 0);
}

TEST(CudaConvRows, RefuseInWords) {
  bsr_conv::Problem p = problem_of(Direction::dx, 512, 28, 64, 21);
  for (int i = 1; i < 3; ++i) p.shape.axis[i] = {28, 14, 3, 2, 1, 1};
  EXPECT_EQ(ask("sm90_conv", p).refusal, "supports dx of stride 1 only");
  EXPECT_EQ(ask("sm80_conv", p).refusal, "");
  p.direction = Direction::forward, p.m = p.shape.out_pixels();
  EXPECT_EQ(ask("sm90_conv", p).refusal, "");
  p.block = {16, 16};
  EXPECT_EQ(ask("sm90_conv", p).refusal, "needs square blocks of 32, 64 or 128, the block is 16x16");
  EXPECT_EQ(ask("sm80_conv", p).refusal, "");
  p.block = {64, 64}, p.aligned = false;
  EXPECT_NE(ask("sm90_conv", p).refusal, "");
  EXPECT_EQ(ask("sm80_conv", p).refusal, "");
  p.aligned = true, p.dtype = DType::f32;
  EXPECT_NE(ask("sm90_conv", p).refusal, "");
  EXPECT_NE(ask("sm80_conv", p).refusal, "");  // f32 is not rounded unasked
  p.tf32 = true;
  EXPECT_EQ(ask("sm80_conv", p).refusal, "");
  plan::Machine small = kHopper;
  small.cuda.shared_bytes = 99u << 10;  // of an sm_86
  EXPECT_EQ(ask("sm80_conv", p, small).refusal, "");
  p.block = {128, 64};
  EXPECT_EQ(ask("sm80_conv", p).refusal, "");
  EXPECT_EQ(ask("sm80_conv", p, small).refusal, "needs 105472 bytes of shared memory, the device has 101376");
}

TEST(CudaConvRows, ProblemsDifferByTheirShape) {
  bsr_conv::Problem p = problem_of(Direction::forward, 512, 28, 64, 21), other = p;
  EXPECT_EQ(bsr_conv::Conv::key(p), bsr_conv::Conv::key(other));
  other.shape.axis[2].dilation = 2;
  EXPECT_NE(bsr_conv::Conv::key(p), bsr_conv::Conv::key(other));
  other = p, other.shape.axis[0].padding = 1;
  EXPECT_NE(bsr_conv::Conv::key(p), bsr_conv::Conv::key(other));
  other = p, other.residual = true;
  EXPECT_NE(bsr_conv::Conv::key(p), bsr_conv::Conv::key(other));
  EXPECT_NE(bsr_conv::Conv::print(p).find("kernel=1x3x3"), std::string::npos) << bsr_conv::Conv::print(p);
}

}  // namespace
}  // namespace sparseloom::testing
