// What the CUDA rows choose for a product on a Hopper GPU, that a launcher takes the same pieces and regions
// from a schedule as the row had in mind, and that it refuses a schedule that names no instance. They need no
// GPU.
#include <gtest/gtest.h>

#include <string>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/sm80/ffma/dw_cut.h"
#include "kernels/bsr_linear/sm80/mma/dw/pieces.h"
#include "kernels/bsr_linear/sm80/mma/dw/row_parts.h"
#include "kernels/bsr_linear/sm90/wgmma/dw/row_parts.h"
#include "kernels/bsr_linear/verb.h"
#include "sparseloom/executor.h"

namespace sparseloom::testing {
namespace {

using kernels::bsr_linear::Answer;

constexpr int kMultiprocessors = 132;
const plan::Machine kHopper{
    runtime::Isa::generic, {}, {90, kMultiprocessors, 50u << 20, 227u << 10, 2e9, 4.8e12}};

const kernels::Kernel& row_of(const std::string& name) {
  for (const kernels::Kernel& row : kernels::cuda_kernels())
    if (name == row.name) return row;
  ADD_FAILURE() << "no row " << name;
  return kernels::cuda_kernels()[0];
}

Problem problem_of(Direction direction, DType dtype, BlockShape block, double density, std::int64_t m = 8192,
                   std::int64_t side = 4096) {
  Problem p;
  p.direction = direction, p.dtype = dtype, p.m = m, p.device = 0;
  p.rows = p.cols = side, p.block = block;
  const auto count = [side](std::int32_t of_block) { return (side + of_block - 1) / of_block; };
  p.blocks = static_cast<std::int64_t>(density * static_cast<double>(count(block.rows) * count(block.cols)));
  return p;
}

std::string chosen(const char* name, const Problem& p) {
  const Answer answer = kernels::bsr_linear::ask(row_of(name), p, kHopper);
  return answer.refusal.empty() ? to_string(answer.schedule) : "refused: " + answer.refusal;
}

TEST(CudaSchedules, DwOfSm80) {
  Problem p = problem_of(Direction::dw, DType::bf16, {32, 32}, 0.1);
  EXPECT_EQ(chosen("sm80_mma", p), "tile 32x256x32, split-K 3");
  p.m = 65536, p.rows = p.cols = 256, p.blocks = 6;
  EXPECT_TRUE(chosen("sm80_mma", p).starts_with("tile 32x256x32, split-K ")) << chosen("sm80_mma", p);
  p = problem_of(Direction::dw, DType::f32, {128, 16}, 0.1);
  EXPECT_EQ(chosen("sm80_ffma", p), "tile 64x128x16, split-K 9");
  p.m = 65536, p.rows = 256, p.cols = 32, p.blocks = 3;
  EXPECT_EQ(chosen("sm80_ffma", p), "tile 64x128x16, split-K 128");
  p.blocks = 0;
  EXPECT_EQ(chosen("sm80_ffma", p), "");
}

TEST(CudaSchedules, ForwardAndDxInFp32) {
  Problem p = problem_of(Direction::forward, DType::f32, {128, 8}, 0.1);
  EXPECT_EQ(chosen("sm80_ffma", p), "tile 128x64");
  p.m = 128;
  EXPECT_EQ(chosen("sm80_ffma", p), "tile 64x32");
  p.direction = Direction::dx;
  EXPECT_EQ(chosen("sm80_ffma", p), "tile 256x8");
  p.block = {8, 32}, p.m = 8192;
  EXPECT_EQ(chosen("sm80_ffma", p), "tile 256x32");
}

TEST(CudaSchedules, DwOfSm90) {
  EXPECT_EQ(chosen("sm90_wgmma", problem_of(Direction::dw, DType::bf16, {128, 128}, 0.1)),
            "by dw_wgmma, tile 128x256x64");
  EXPECT_EQ(chosen("sm90_wgmma_narrow", problem_of(Direction::dw, DType::bf16, {128, 128}, 0.1)),
            "by dw_wgmma, tile 128x128x64");
  EXPECT_TRUE(chosen("sm90_wgmma", problem_of(Direction::dw, DType::f16, {16, 16}, 0.1))
                  .starts_with("by dw_wgmma_regions, tile "));
  Problem p = problem_of(Direction::dw, DType::f32, {64, 64}, 0.2);
  EXPECT_TRUE(chosen("sm90_split", p).starts_with("by dw_wgmma, tile 64x")) << chosen("sm90_split", p);
  p.tf32 = true;
  EXPECT_TRUE(chosen("sm90_wgmma", p).starts_with("by dw_wgmma, tile 64x")) << chosen("sm90_wgmma", p);
}

TEST(CudaSchedules, ForwardAndDxOfSm90) {
  Problem p = problem_of(Direction::forward, DType::bf16, {64, 64}, 0.2);
  EXPECT_EQ(chosen("sm90_wgmma", p), "tile 256x128x64, a grid of 128, swap-AB");
  EXPECT_EQ(chosen("sm90_wgmma_narrow", p), "tile 128x64x64, a grid of 264");
  p.activation = Activation::relu;
  EXPECT_EQ(chosen("sm90_wgmma", p), "tile 256x128x64, a grid of 128, swap-AB, stores at the end of a tile");
  EXPECT_EQ(chosen("sm90_wgmma_narrow", p), "tile 128x64x64, a grid of 264");
  p.residual = true;
  EXPECT_EQ(chosen("sm90_wgmma", p), "tile 256x128x64, a grid of 128, swap-AB");
  p = problem_of(Direction::dx, DType::f16, {128, 128}, 0.2);
  EXPECT_EQ(chosen("sm90_wgmma", p), "tile 256x128x64, a grid of 128, swap-AB");
  EXPECT_EQ(chosen("sm90_wgmma", problem_of(Direction::forward, DType::bf16, {32, 32}, 0.1)),
            "tile 256x128x32, a grid of 128");
  EXPECT_EQ(chosen("sm90_wgmma", problem_of(Direction::forward, DType::bf16, {32, 32}, 0.2)),
            "tile 256x128x64, a grid of 128");
  EXPECT_EQ(chosen("sm90_wgmma", problem_of(Direction::forward, DType::bf16, {32, 64}, 0.1)),
            "tile 256x128x64, a grid of 128");
  p = problem_of(Direction::forward, DType::f32, {64, 64}, 0.1);
  EXPECT_EQ(chosen("sm90_split", p), "tile 128x128x32, a grid of 128");
  EXPECT_EQ(chosen("sm90_split_narrow", p), "tile 128x64x32, a grid of 128");
  p.tf32 = true;
  EXPECT_EQ(chosen("sm90_wgmma", p), "tile 256x128x32, a grid of 128");
}

// Each of 32 neighbouring block rows of a band stores the same few block columns. With the slots of blocks at
// random a K tile took eight stages, and 4898 x 1024 x 3072 took 79 us on an H100 for 20 predicted.
TEST(CudaSchedules, SlotsOfBandsOfSm90) {
  Problem p = problem_of(Direction::forward, DType::bf16, {16, 16}, 1);
  p.m = 4898, p.rows = 3072, p.cols = 1024, p.blocks = 570;
  const auto slots = [&] { return kernels::bsr_linear::ask(row_of("sm90_mma"), p, kHopper).schedule.slots; };
  const int at_random = slots();
  p.facts = {true, false, Longest::chance, Longest::chance, true};
  EXPECT_LT(at_random, 36);
  EXPECT_GE(slots(), 36);  // nine block rows store each of a K tile's four block columns
}

TEST(CudaSchedules, EightBitsOfSm90) {
  const auto chosen_for = [](const ScaledProblem& p) {
    const auto rows = kernels::cuda_scaled_kernels();
    const auto row = std::find_if(rows.begin(), rows.end(), [](const kernels::ScaledKernel& each) {
      return std::string("sm90_wgmma") == each.name;
    });
    return to_string(kernels::bsr_linear::ask(*row, p, kHopper).schedule);
  };
  const auto eight_bits = [](BlockShape block, double density) {
    ScaledProblem p;
    static_cast<CommonProblem&>(p) = problem_of(Direction::forward, DType::f8e4m3, block, density);
    p.out = DType::bf16;
    return p;
  };
  ScaledProblem p = eight_bits({64, 64}, 0.1);
  EXPECT_EQ(chosen_for(p), "tile 256x128x64, a grid of 128");
  p.fast_accum = true;
  EXPECT_EQ(chosen_for(p), "tile 256x128x64, a grid of 128, swap-AB");
  p.blocks *= 2;
  EXPECT_EQ(chosen_for(p), "tile 256x128x64, a grid of 128, swap-AB, stores at the end of a tile");
  p.out = DType::f32;
  EXPECT_EQ(chosen_for(p), "tile 256x128x64, a grid of 128");
  p = eight_bits({128, 128}, 0.3);
  p.fast_accum = true;
  EXPECT_EQ(chosen_for(p), "tile 256x128x128, a grid of 128, swap-AB");
}

// K tiles are chosen by the units that are expected, not by the blocks.
TEST(CudaSchedules, MergedBlocks) {
  EXPECT_EQ(chosen("sm90_wgmma_merged", problem_of(Direction::forward, DType::bf16, {16, 16}, 0.03)),
            "tile 256x128x32, a grid of 128");
  EXPECT_EQ(chosen("sm90_wgmma_merged", problem_of(Direction::forward, DType::bf16, {16, 16}, 0.1)),
            "tile 256x128x64, a grid of 128");
}

// Where L2 does not hold the values, all M tiles pass over some N tiles before the next ones.
TEST(CudaSchedules, NTilesInChunks) {
  Problem p = problem_of(Direction::forward, DType::bf16, {64, 64}, 0.5);
  EXPECT_EQ(chosen("sm90_wgmma", p), "tile 256x128x64, a grid of 128, swap-AB");
  p.rows = 16384, p.blocks *= 4;
  EXPECT_EQ(chosen("sm90_wgmma", p), "tile 256x128x64, a grid of 128, N tiles in chunks of 32, swap-AB");
  const Schedule schedule = kernels::bsr_linear::ask(row_of("sm90_wgmma"), p, kHopper).schedule;
  EXPECT_EQ(schedule.groups.step, 1);
  EXPECT_EQ(schedule.stride_n, 4);
}

TEST(CudaSchedules, RingOfSm90Mma) {
  Problem p = problem_of(Direction::forward, DType::bf16, {16, 16}, 0.05);
  EXPECT_EQ(chosen("sm90_mma", p), "tile 64x512x64, 10 stages of 20 blocks, a grid of 128");
  p.blocks *= 10;
  EXPECT_EQ(chosen("sm90_mma", p), "tile 64x512x64, 4 stages of 76 blocks, a grid of 128");
  p.m = 64;
  EXPECT_EQ(chosen("sm90_mma", p), "tile 64x512x64, 4 stages of 76 blocks, a grid of 8");
  EXPECT_EQ(chosen("sm90_mma_merged", problem_of(Direction::dx, DType::bf16, {8, 8}, 0.05)),
            "tile 64x512x64, 5 stages of 48 blocks, a grid of 128");
}

TEST(CudaSchedules, PiecesOfTokensAreThoseOfTheCut) {
  namespace cuda = kernels::cuda;
  for (const std::int64_t m : {0, 1, 16, 300, 513, 4096, 8191, 65536, 1000003})
    for (const BlockShape block : {BlockShape{8, 8}, {16, 64}, {32, 32}, {128, 128}})
      for (const double density : {0.004, 0.05, 0.5})
        for (const DType dtype : {DType::bf16, DType::f32}) {
          Problem p = problem_of(Direction::dw, dtype, block, density, m, 1000);
          if (p.blocks == 0) p.blocks = 1;
          MatmulArgs args;
          args.m = m, args.index.block = block;
          const auto cut = cuda::mma::dw::cut_tokens(cuda::mma::dw::size_of_product(p), kMultiprocessors);
          auto pieces = cuda::dw_pieces::pieces_of(args, cuda::sm80_mma_dw_schedule(p, kMultiprocessors));
          EXPECT_EQ(pieces.pieces, cut.pieces) << to_string(p);
          EXPECT_EQ(pieces.piece_tokens, cut.piece_tokens) << to_string(p);
          EXPECT_EQ(pieces.log2_group, cut.log2_group) << to_string(p);
          if (dtype != DType::f32) continue;
          const auto by_ffma = cuda::ffma::cut_tokens(m, (p.rows + block.rows - 1) / block.rows, block,
                                                      p.blocks, kMultiprocessors);
          const Schedule schedule = kernels::bsr_linear::ask(row_of("sm80_ffma"), p, kHopper).schedule;
          pieces = cuda::dw_pieces::pieces_of(args, schedule);
          EXPECT_EQ(pieces.pieces, by_ffma.pieces) << to_string(p);
          EXPECT_EQ(pieces.piece_tokens, by_ffma.piece_tokens) << to_string(p);
          EXPECT_EQ(pieces.log2_group, by_ffma.log2_group) << to_string(p);
          EXPECT_EQ(block.rows / schedule.tile_m, by_ffma.parts) << to_string(p);
        }
}

TEST(CudaSchedules, ItemsAndRegionsAreThoseOfTheWay) {
  using namespace kernels::cuda::wgmma::dw;
  for (const BlockShape block : {BlockShape{16, 16}, {32, 16}, {16, 32}, {32, 32}, {64, 32}, {128, 128}})
    for (const double density : {0.01, 0.1, 0.3, 0.9})
      for (const std::int64_t side : {1000, 4096, 12000})
        for (const bool narrow : {false, true}) {
          Problem p = problem_of(Direction::dw, DType::bf16, block, density, 4096, side);
          if (p.blocks == 0) p.blocks = 1;
          const Way way = way_of(p, kStep16, kMultiprocessors, narrow);
          if (!way.exists()) continue;
          const Schedule schedule = schedule_of(p, kStep16, way);
          IndexView index;
          index.rows = p.rows, index.cols = p.cols, index.block = block, index.blocks = p.blocks;
          const Grid grid = grid_of(schedule, index);
          EXPECT_EQ(most_blocks_of(schedule, kStep16, block), way.by_regions ? 0 : way.deal.most_blocks);
          EXPECT_EQ(grid.row_boxes, way.by_regions ? way.regions.row_boxes : 0) << to_string(p);
          if (!way.by_regions) continue;
          EXPECT_EQ(grid.column_boxes, way.regions.column_boxes) << to_string(p);
          EXPECT_EQ(grid.down, way.regions.down) << to_string(p);
          EXPECT_EQ(grid.across, way.regions.across) << to_string(p);
        }
}

// A launcher looks the instance up before it asks anything of a GPU.
TEST(CudaSchedules, LaunchersRefuseAScheduleThatNamesNoInstance) {
  alignas(64) static std::byte memory[64];
  const Executor executor;
  const auto refuses = [&](const char* name, const Problem& p, const Schedule& schedule) {
    MatmulArgs args;
    args.direction = p.direction, args.dtype = p.dtype, args.m = p.m, args.tf32 = p.tf32;
    args.activation = p.activation, args.out_dtype = p.dtype;
    args.a = args.b = args.values = args.out = memory, args.workspace = memory;
    args.a_stride = p.direction == Direction::forward ? p.cols : p.rows, args.b_stride = p.cols;
    args.out_stride = p.direction == Direction::forward ? p.rows : p.cols;
    args.index.rows = p.rows, args.index.cols = p.cols, args.index.block = p.block;
    args.index.blocks = p.blocks;
    return row_of(name).launch(args, schedule, executor) == 1;  // cudaErrorInvalidValue
  };
  const Problem dw = problem_of(Direction::dw, DType::bf16, {32, 32}, 0.1),
                forward = problem_of(Direction::forward, DType::bf16, {64, 64}, 0.1);
  for (const char* const name : {"sm80_mma", "sm90_wgmma", "sm90_wgmma_narrow"}) {
    EXPECT_TRUE(refuses(name, dw, {})) << name;
    Schedule schedule = kernels::bsr_linear::ask(row_of(name), dw, kHopper).schedule;
    schedule.tile_n += 8;
    EXPECT_TRUE(refuses(name, dw, schedule)) << name;
  }
  Schedule schedule = kernels::bsr_linear::ask(row_of("sm80_mma"), dw, kHopper).schedule;
  schedule.split_k = 1 << 20;  // more than there are steps
  EXPECT_TRUE(refuses("sm80_mma", dw, schedule));
  for (const char* const name : {"sm90_wgmma", "sm90_wgmma_narrow"}) {
    EXPECT_TRUE(refuses(name, forward, {})) << name;
    schedule = kernels::bsr_linear::ask(row_of(name), forward, kHopper).schedule;
    schedule.tile_k = 32;  // blocks of 64 have K tiles of 64
    EXPECT_TRUE(refuses(name, forward, schedule)) << name;
  }
  const Problem narrow = problem_of(Direction::forward, DType::bf16, {16, 16}, 0.1);
  EXPECT_TRUE(refuses("sm90_mma", narrow, {}));
  schedule = kernels::bsr_linear::ask(row_of("sm90_mma"), narrow, kHopper).schedule;
  schedule.slots += 100;  // more than the shared memory holds
  EXPECT_TRUE(refuses("sm90_mma", narrow, schedule));
  Problem f32 = problem_of(Direction::forward, DType::f32, {16, 16}, 0.1);
  EXPECT_TRUE(refuses("sm80_ffma", f32, {}));
  schedule = {};
  schedule.tile_m = 128, schedule.tile_n = 64;  // wider than a block row
  EXPECT_TRUE(refuses("sm80_ffma", f32, schedule));
  f32.direction = Direction::dw;
  EXPECT_TRUE(refuses("sm80_ffma", f32, schedule));
  EXPECT_TRUE(refuses("sm90_split", problem_of(Direction::dw, DType::f32, {64, 64}, 0.1), schedule));
}

}  // namespace
}  // namespace sparseloom::testing
