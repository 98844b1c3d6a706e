// What the rows of sm80_mma and of the decode kernels choose, as plans print it. The machines are described,
// so no GPU is needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm80/decode/entry.h"
#include "kernels/bsr_linear/sm80/mma/entry.h"
#include "kernels/bsr_linear/sm90/decode_lines/entry.h"
#include "kernels/bsr_linear/verb.h"
#include "ops/rows.h"
#include "sparseloom/error.h"

namespace sparseloom::testing {
namespace {

const plan::Machine kH200{
    runtime::Isa::generic, {}, {90, 132, 50u << 20, 227u << 10, 2e9, 4.8e12}, {}, {132, 66, 32, 16}},
    kA100{runtime::Isa::generic, {}, {80, 108, 40u << 20, 163u << 10, 1.4e9, 1.9e12}};

/// bf16 with a tenth of the blocks.
Problem problem_of(std::int64_t m, std::int64_t rows, std::int64_t cols, int side) {
  ops::enter_own_rows();
  Problem p;
  p.dtype = DType::bf16, p.device = 0;
  p.m = m, p.rows = rows, p.cols = cols, p.block = {side, side};
  p.blocks = ((rows + side - 1) / side) * ((cols + side - 1) / side) / 10;
  return p;
}

/// The line of describe() that says what the row chose.
std::string chosen(const char* row, const Problem& problem, const plan::Machine& machine = kH200) {
  const Plan plan =
      plan::typed<kernels::Linear>(problem, plan::select(plan::any<kernels::Linear>(problem), machine, row));
  const std::string text = plan.describe();
  EXPECT_NE(text.find("\n  " + to_string(plan.schedule) + "\n"), std::string::npos) << text;
  return to_string(plan.schedule);
}

TEST(SmallBatchSchedules, Sm80Mma) {
  const auto mma = [](std::int64_t m, std::int64_t rows, std::int64_t cols, int side, Direction direction,
                      DType dtype, const plan::Machine& machine) {
    Problem p = problem_of(m, rows, cols, side);
    p.direction = direction, p.dtype = dtype, p.tf32 = dtype == DType::f32;
    return chosen("sm80_mma", p, machine);
  };
  const auto forward = Direction::forward, dx = Direction::dx;
  EXPECT_EQ(mma(8192, 4096, 4096, 64, forward, DType::bf16, kH200), "tile 256x64x32, 2 tiles in turn");
  EXPECT_EQ(mma(8192, 4096, 4096, 128, dx, DType::bf16, kH200), "tile 256x128x64, 4 tiles in turn");
  EXPECT_EQ(mma(8192, 4096, 4096, 32, forward, DType::f32, kH200), "tile 256x32x32, 4 tiles in turn");
  EXPECT_EQ(mma(4096, 4096, 4096, 8, forward, DType::bf16, kA100), "tile 128x8x64, 16 tiles in turn");
  EXPECT_EQ(mma(128, 1024, 65536, 128, forward, DType::bf16, kH200),
            "tile 256x128x64, clusters of 4");  // few tiles share block rows
  EXPECT_EQ(mma(128, 1024, 65536, 128, forward, DType::bf16, kA100),
            "tile 64x128x64");  // but only in clusters
  EXPECT_EQ(mma(64, 4096, 4096, 128, forward, DType::bf16, kH200), "tile 256x128x64, clusters of 4");
}

TEST(SmallBatchSchedules, Sm80Decode) {
  Problem p = problem_of(16, 12288, 12288, 32);
  EXPECT_EQ(chosen("sm80_decode", p), "tile 16x32x32, 6 warps");
  p = problem_of(64, 4096, 4096, 64);
  EXPECT_EQ(chosen("sm80_decode", p), "tile 64x32x32, 8 warps");
  EXPECT_EQ(chosen("sm80_decode", p, kA100), "tile 64x32x32, 4 warps");
  p.direction = Direction::dx, p.m = 20;
  EXPECT_EQ(chosen("sm80_decode", p), "tile 32x32x32, 8 warps");
  p.dtype = DType::f32;
  EXPECT_EQ(chosen("sm80_decode", p), "tile 32x32x16, 8 warps");
}

TEST(SmallBatchSchedules, Sm80DecodeStaged) {
  EXPECT_EQ(chosen("sm80_decode_staged", problem_of(8, 4096, 4096, 16)),
            "tile 16x16x2048, 2 tiles at once, 12 warps");
  EXPECT_EQ(chosen("sm80_decode_staged", problem_of(33, 4096, 4096, 8)),
            "tile 64x8x512, 16 tiles at once, 1 warp, clusters of 4");
  EXPECT_EQ(chosen("sm80_decode_staged", problem_of(32, 400, 4096, 16)),  // few strips
            "tile 32x8x256, 4 tiles at once, 2 warps, clusters of 8");
}

TEST(SmallBatchSchedules, Sm90DecodeLines) {
  EXPECT_EQ(chosen("sm90_decode_lines", problem_of(8, 4096, 4096, 32)),
            "by decode_rows, tile 8x32x32, 16 warps");
  EXPECT_EQ(chosen("sm90_decode_lines", problem_of(16, 12288, 12288, 64)),
            "by decode_rows, tile 16x32x64, 5 warps");
  EXPECT_EQ(chosen("sm90_decode_lines", problem_of(33, 65536, 1024, 128)),
            "by decode_rows, tile 64x32x64, 4 warps");
  EXPECT_EQ(chosen("sm90_decode_lines", problem_of(16, 4096, 4096, 16)),
            "by decode_rows, tile 16x16x16, 8 warps");
  Problem p = problem_of(32, 12288, 12288, 16);
  p.blocks *= 3;  // many: X is streamed
  EXPECT_EQ(chosen("sm90_decode_lines", p),
            "by decode_x_streamed, tile 32x16x96, 12 tiles at once, 1 warp, clusters of 2");
  p = problem_of(32, 20000, 12288, 16), p.blocks *= 3;
  EXPECT_EQ(chosen("sm90_decode_lines", p),
            "by decode_x_streamed, tile 32x16x96, 10 tiles at once, 1 warp, clusters of 2");
}

TEST(SmallBatchSchedules, UnevenRowsChooseTheRow) {
  Problem p = problem_of(16, 12288, 12288, 64);
  p.facts = {true, true};
  EXPECT_THROW(chosen("sm90_decode_lines", p), Error);
  EXPECT_EQ(chosen("sm80_decode", p), "tile 16x32x32, 6 warps");
}

// The schedule is asked before anything of the device is, so a wrong one is reported without a GPU too.
TEST(SmallBatchSchedules, AScheduleThatNamesNoInstanceIsRefused) {
  alignas(16) static std::byte memory[64] = {};
  MatmulArgs args;
  args.dtype = DType::bf16, args.m = 16, args.a = args.values = memory, args.out = memory, args.device = 0;
  args.a_stride = args.out_stride = 1024;
  args.index.rows = args.index.cols = 1024, args.index.block = {64, 64}, args.index.blocks = 25;
  constexpr int kInvalid = 1;  // cudaErrorInvalidValue
  const Schedule good = [] {
    Schedule s;
    s.tile_m = 64, s.tile_n = 64, s.tile_k = 64, s.tiles_in_turn = s.cluster = 1;
    return s;
  }();
  for (int i = 0; i < 6; ++i) {
    Schedule s = good;
    if (i == 0) s = {};
    if (i == 1) s.tile_m = 128;
    if (i == 2) s.tile_n = 32;  // a tile there is, but for blocks of another side
    if (i == 3) s.tile_k = 32;
    if (i == 4) s.tiles_in_turn = 0;
    if (i == 5) s.cluster = 2;  // teams have wider tiles
    EXPECT_EQ(kernels::cuda::sm80_mma_forward(args, s), kInvalid) << i;
  }
  Schedule s;
  s.tile_m = 8, s.tile_n = 32, s.tile_k = 32, s.warps = 4;  // fewer tokens than the call has
  EXPECT_EQ(kernels::cuda::sm80_decode(args, s), kInvalid);
  EXPECT_EQ(kernels::cuda::sm90_decode_lines(args, {}), kInvalid);
}

}  // namespace
}  // namespace sparseloom::testing
