// AMX where there is none: the emulated instructions by themselves, then the kernel's own paths that small
// products do not reach. On a machine with AMX, the machine against the emulation. All other kernel tests run
// amx_tile_emulated too.
#if defined(__x86_64__)

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "kernels/amx_emulated.h"
#include "kernels/bsr_linear/rows.h"
#include "kernels/case.h"
#include "kernels/scaled_case.h"
#include "kernels/shared/cpu/tile.h"
#include "runtime/cpu.h"
#include "sparseloom/generic/half.h"

namespace sparseloom::testing {
namespace {

constexpr Direction kDirections[] = {Direction::forward, Direction::dx, Direction::dw};

bool can_emulate() { return runtime::active_isa().has(runtime::Isa::avx512_bf16); }

class AmxEmulated : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!can_emulate()) GTEST_SKIP() << "the kernel packs by AVX-512 BF16";
  }
  void TearDown() override { EXPECT_FALSE(emulated_tiles_in_use()) << "a task kept its tiles"; }

  static void check(const Case& c, std::initializer_list<int> threads = {2, 5}) {
    Instance instance(c);
    const Matrix one = instance.run(emulated_amx_kernel(), Executor::serial());
    expect_accurate(instance, one, instance.answer());
    for (const int n : threads)
      EXPECT_EQ(instance.run(emulated_amx_kernel(), backwards(n)).bytes, one.bytes)
          << describe(c) << " on " << n;
    EXPECT_EQ(instance.run(emulated_amx_kernel(), Executor::pool(5)).bytes, one.bytes)
        << describe(c) << " on the pool";
  }
};

std::uint16_t bf16(float x) { return core::to_bf16(x).bits; }

// sums[0][0] of one product of a 1 x 32 A with a 16 x 1 B on top of `old`.
float dot(const std::vector<float>& a, const std::vector<float>& b, float old) {
  std::uint16_t left[32] = {}, right[32] = {};
  for (std::size_t i = 0; i < a.size(); ++i) left[i] = bf16(a[i]), right[i] = bf16(b[i]);
  return emulated_dot(left, right, old);
}

TEST_F(AmxEmulated, DotRoundsInIntelsOrder) {
  EXPECT_EQ(dot({1, 2, 3}, {10, 100, 1000}, 0.5f), 3210.5f);
  // Even and odd products have sums of their own, so 1 survives beside 2^30 - 2^30; in one running sum it
  // would not.
  EXPECT_EQ(dot({0x1p30f, 1, -0x1p30f}, {1, 1, 1}, 0), 1.0f);
  EXPECT_EQ(dot({0x1p30f, 0, 1, 0, -0x1p30f}, {1, 1, 1, 1, 1}, 0), 0.0f);
  // The old value comes last.
  EXPECT_EQ(dot({0x1p30f, -0x1p30f}, {1, 1}, 1), 1.0f);
  // Denormals are zero: as operands, as products, as old values.
  EXPECT_EQ(dot({0x1p-130f}, {0x1p20f}, 0), 0.0f);
  EXPECT_EQ(dot({0x1p-100f}, {0x1p-30f}, 0), 0.0f);
  EXPECT_EQ(dot({}, {}, 0x1p-130f), 0.0f);
}

using AmxEmulatedDeath = AmxEmulated;
TEST_F(AmxEmulatedDeath, WhatAMachineWouldFaultOnIsFatal) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Case c;
  c.dtype = DType::bf16, c.m = 40, c.rows = 64, c.cols = 64, c.block = {32, 32}, c.density = 1;
  Instance instance(c);
  kernels::cpu::PanelJob job = kernels::cpu::panel_job(instance.args());
  std::vector<float> panel(32 * 32);
  std::vector<std::uint16_t> out(64 * 64);
  job.out = out.data(), job.out_stride = 64;
  const kernels::cpu::TileStrip strip{panel.data(), 0, 32, 0, 32, true};
  const auto run = [&](const kernels::cpu::TileShape& shape) {
    kEmulatedTile.begin(shape);
    kEmulatedTile.strip(32, 2)(job, strip);
    kEmulatedTile.end();
  };
  EXPECT_DEATH(kEmulatedTile.strip(32, 2)(job, strip), "not configured");
  EXPECT_DEATH(run({8, 32, 16, 1}), "rows of A");   // a strip of 16 rows a tile
  EXPECT_DEATH(run({16, 16, 16, 1}), "rows of A");  // tile 5 holds A where 32 outputs are asked for
  EXPECT_DEATH(run({17, 32, 16, 2}), "impossible sizes");
}

// Tasks that own tokens, tasks that own outputs, several macro tiles, a last panel of each width.
TEST_F(AmxEmulated, EveryCutOfTokensAndOutputs) {
  for (const Direction direction : {Direction::forward, Direction::dx})
    for (const std::int32_t side : {8, 32})
      for (const std::int64_t m : {16, 33, 49, 160, 320}) {
        Case c;
        c.direction = direction, c.dtype = DType::bf16, c.m = m, c.rows = 544, c.cols = 1056,
        c.block = {side, side};
        c.density = 0.15, c.stride_padding = m % 3;
        check(c, {2, 3, 5, 16});
      }
}

TEST_F(AmxEmulated, ChunksOfTokensUnderManyThreads) {
  Case c;
  c.dtype = DType::bf16, c.m = 600, c.rows = 64, c.cols = 33000, c.block = {32, 8}, c.density = 0.02;
  check(c, {3});
  c.direction = Direction::dx;
  std::swap(c.rows, c.cols), std::swap(c.block.rows, c.block.cols);
  check(c, {3});
}

// Outputs past the caches: the bytes of those that stay in them, where rows begin at a cache line and where
// not.
void streams_the_same_bytes(const kernels::cpu::TileOps& ops, DType dtype, DType out_dtype) {
  constexpr std::int64_t kSide = 32, kStride = 64;
  const auto size = static_cast<std::int64_t>(size_of(out_dtype));
  std::vector<std::uint16_t> values(kSide * kSide), panel(kSide * kSide);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto x = static_cast<std::uint16_t>(i * 37 % 29), y = static_cast<std::uint16_t>(i * 53 % 31);
    values[i] = dtype == DType::bf16 ? bf16(static_cast<float>(x) - 14) : x;
    panel[i] = dtype == DType::bf16 ? bf16(static_cast<float>(y) - 15) : y;
  }
  const std::int32_t begin = 0, end = 1, column = 0;
  const float scale = 0.75f;
  kernels::cpu::PanelJob job;
  job.dtype = dtype, job.out_dtype = out_dtype;
  job.depth = job.output_block = job.depth_block = job.block_cols = kSide, job.block_elements = kSide * kSide;
  job.output_blocks = job.depth_blocks = 1;
  job.begin = &begin, job.end = &end, job.depth_index = &column, job.values = values.data();
  job.out_stride = kStride, job.token_scale = job.output_scale = &scale;
  for (const std::int64_t tokens : {std::int64_t{17}, kSide})
    for (const std::int64_t outputs : {std::int64_t{24}, kSide})
      for (const std::int64_t shift : {0, 16, 3}) {
        std::vector<std::byte> written[2];
        for (const bool streams : {false, true}) {
          const std::unique_ptr<std::byte, decltype(&std::free)> out(
              static_cast<std::byte*>(std::aligned_alloc(64, kSide * kStride * size)), &std::free);
          std::fill_n(out.get(), kSide * kStride * size, kPoison);
          kernels::cpu::DeferredLines lines;
          job.tokens = tokens, job.outputs = outputs, job.out = out.get() + shift * size;
          ops.begin({16, std::min<int>(kSide, 16 * ops.per_cell), 16, 2});
          ops.strip(kSide, 2)(job, {reinterpret_cast<const float*>(panel.data()), 0, outputs, 0, tokens, true,
                                    streams ? &lines : nullptr});
          ops.end();
          EXPECT_EQ(lines.left() > 0, streams && outputs == kSide && shift % (64 / size) == 0);
          lines.finish();
          written[streams].assign(out.get(), out.get() + kSide * kStride * size);
        }
        ASSERT_EQ(written[1], written[0]) << tokens << " x " << outputs << " from " << shift;
        const std::int64_t behind = ((tokens - 1) * kStride + shift + outputs) * size;
        EXPECT_EQ(written[1][static_cast<std::size_t>(behind)], kPoison);
        EXPECT_NE(written[1][static_cast<std::size_t>(behind - 1)], kPoison);
      }
}
TEST_F(AmxEmulated, PastTheCachesTheSameBytes) {
  streams_the_same_bytes(kEmulatedTile, DType::bf16, DType::bf16);
  streams_the_same_bytes(kEmulatedInt8Tile, DType::i8, DType::bf16);
  streams_the_same_bytes(kEmulatedInt8Tile, DType::i8, DType::f32);
}
TEST(AmxMachine, PastTheCachesTheSameBytes) {
  if (!runtime::active_isa().has(runtime::Isa::amx)) GTEST_SKIP() << "no AMX, or not allowed";
  streams_the_same_bytes(kernels::cpu::kAmxTile, DType::bf16, DType::bf16);
  streams_the_same_bytes(kernels::cpu::kAmxInt8Tile, DType::i8, DType::bf16);
  streams_the_same_bytes(kernels::cpu::kAmxInt8Tile, DType::i8, DType::f32);
}

// X of more than the L2's share: block columns in groups, and all at once where the stored blocks are few;
// chunks of tokens.
TEST_F(AmxEmulated, GroupsOfColumnsInDw) {
  for (const BlockShape block : {BlockShape{8, 8}, {16, 128}, {64, 32}, {128, 16}})
    for (const double density : {0.01, 0.4}) {
      Case c;
      c.direction = Direction::dw, c.dtype = DType::bf16, c.m = 500, c.rows = 250, c.cols = 2020,
      c.block = block, c.density = density;
      check(c, {2, 5});
    }
  Case c;
  c.direction = Direction::dw, c.dtype = DType::bf16, c.m = 2100, c.rows = 100, c.cols = 9000,
  c.block = {32, 32}, c.density = 0.02;
  check(c, {3});
}

TEST_F(AmxEmulated, AnyAlignmentAndSkew) {
  for (const Direction direction : kDirections)
    for (const BlockShape block : {BlockShape{8, 64}, {16, 16}, {64, 8}, {128, 32}}) {
      Case c;
      c.direction = direction, c.dtype = DType::bf16, c.m = 77, c.rows = 391, c.cols = 530, c.block = block,
      c.density = 0.5;
      c.values_shift = 1, c.stride_padding = 1, c.bias = direction == Direction::forward;
      check(c);
      c.skewed = true;
      check(c);
    }
}

TEST_F(AmxEmulated, PlanNeedsTheMachineAndItsRate) {
  Problem p;
  p.dtype = DType::bf16, p.m = 1024, p.rows = p.cols = 4096, p.block = {32, 32}, p.blocks = 1638,
  p.threads = 2;
  const kernels::Kernel *tile = nullptr, *panel = nullptr;
  for (const kernels::Kernel& kernel : kernels::cpu_kernels()) {
    if (kernel.name == std::string("amx_tile")) tile = &kernel;
    if (kernel.name == std::string("avx512bf16_panel")) panel = &kernel;
  }
  ASSERT_TRUE(tile && panel);
  using kernels::bsr_linear::ask;
  plan::Machine machine{runtime::Isa::avx512_bf16, {}, {}};
  EXPECT_NE(ask(*tile, p, machine).refusal.find("needs amx"), std::string::npos);
  machine.isa = runtime::Isa::amx;
  EXPECT_EQ(ask(*tile, p, machine).refusal, "");
  machine.rates = {107e9, 214e9, 107e9, 3.14e12, 428e9, 6.3e12, 20e9, 0};  // a Sapphire Rapids core
  EXPECT_LT(ask(*tile, p, machine).predicted_us, ask(*panel, p, machine).predicted_us / 4);
  machine.rates.bf16_amx = 50e9;  // tiles that something emulates
  EXPECT_GT(ask(*tile, p, machine).predicted_us, ask(*panel, p, machine).predicted_us);
  p.dtype = DType::f16;
  EXPECT_NE(ask(*tile, p, machine).refusal.find("bf16"), std::string::npos);
}

// The paths of int8's walk that small products do not reach.
TEST_F(AmxEmulated, EveryCutOfTokensAndOutputsInInt8) {
  for (const std::int32_t side : {8, 32, 64})
    for (const std::int64_t m : {16, 33, 49, 160, 320}) {
      ScaledCase c;
      c.m = m, c.rows = 544, c.cols = 2080, c.block = {side, side}, c.density = 0.15,
      c.stride_padding = m % 3;
      c.out = m % 2 ? DType::f32 : DType::bf16, c.bias = true, c.skewed = m == 49;
      ScaledInstance instance(c);
      const Matrix one = instance.run(emulated_amx_int8_kernel(), Executor::serial());
      instance.expect_right(one);
      for (const int n : {2, 3, 5, 16})
        EXPECT_EQ(instance.run(emulated_amx_int8_kernel(), backwards(n)).bytes, one.bytes)
            << describe(c) << " on " << n;
    }
  EXPECT_FALSE(emulated_int8_tiles_in_use()) << "a task kept its tiles";
}

// All of int8's machine code against exact sums; the tests of scaled_test.cpp run it too where there is AMX.
TEST(AmxMachine, Int8GivesTheBitsOfTheEmulation) {
  if (!runtime::active_isa().has(runtime::Isa::amx)) GTEST_SKIP() << "no AMX, or not allowed";
  const kernels::ScaledKernel* tile = nullptr;
  for (const kernels::ScaledKernel& kernel : kernels::cpu_scaled_kernels())
    if (kernel.name == std::string("amx_int8_tile")) tile = &kernel;
  ASSERT_NE(tile, nullptr);
  for (const std::int32_t bm : {8, 16, 32, 64, 128})
    for (const std::int32_t bn : {8, 16, 32, 64, 128})
      for (const std::int64_t m : {1, 50, 131}) {
        ScaledCase c;
        c.m = m, c.rows = 250, c.cols = 390, c.block = {bm, bn}, c.density = 0.5, c.stride_padding = 3,
        c.bias = true;
        c.out = m == 50 ? DType::bf16 : DType::f32;
        ScaledInstance instance(c);
        const Matrix machine = instance.run(*tile, Executor::pool(3));
        ASSERT_EQ(machine.bytes, instance.run(emulated_amx_int8_kernel(), Executor::serial()).bytes)
            << describe(c);
        instance.expect_right(machine);
      }
}

// The instruction as Intel describes it, the same code around it: the same bits.
TEST(AmxMachine, GivesTheBitsOfTheEmulation) {
  if (!runtime::active_isa().has(runtime::Isa::amx)) GTEST_SKIP() << "no AMX, or not allowed";
  const kernels::Kernel* tile = nullptr;
  for (const kernels::Kernel& kernel : kernels::cpu_kernels())
    if (kernel.name == std::string("amx_tile")) tile = &kernel;
  ASSERT_NE(tile, nullptr);
  for (const Direction direction : kDirections)
    for (const std::int32_t bm : {8, 16, 32, 64, 128})
      for (const std::int32_t bn : {8, 16, 32, 64, 128})
        for (const std::int64_t m : {1, 50, 131}) {
          Case c;
          c.direction = direction, c.dtype = DType::bf16, c.m = m, c.rows = 250, c.cols = 390,
          c.block = {bm, bn}, c.density = 0.5;
          c.stride_padding = 3, c.bias = direction == Direction::forward;
          Instance instance(c);
          const Matrix machine = instance.run(*tile, Executor::pool(3));
          ASSERT_EQ(machine.bytes, instance.run(emulated_amx_kernel(), Executor::serial()).bytes)
              << describe(c);
          expect_accurate(instance, machine, instance.answer());
        }
}

// Linux refuses the tiles to a process one of whose threads has a signal stack that could not hold them.
TEST(AmxMachine, PermissionDeniedMeansAbsent) {
  std::ifstream file("/proc/cpuinfo");
  const std::string cpuinfo{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (cpuinfo.find("amx_bf16") == std::string::npos) GTEST_SKIP() << "no AMX";
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a new process, which has not asked yet
  const auto ask_with_a_small_stack = [] {
    static char small[2048];
    const stack_t stack = {small, 0, sizeof small};
    if (sigaltstack(&stack, nullptr) != 0) std::_Exit(2);
    // A CPU with tiles has more sets beside these: AVX512-VNNI always, VBMI2 so far.
    const runtime::Isa found = runtime::detected_isa();
    std::_Exit(found.has(runtime::Isa::avx512_bf16) && !found.has(runtime::Isa::amx) ? 0 : 1);
  };
  EXPECT_EXIT(ask_with_a_small_stack(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sparseloom::testing

#endif
