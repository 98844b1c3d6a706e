// The tests' own instruments: an answer by a second way, guards that bite, TF32's rounding. On the CPU, so
// that they are checked wherever the tests are built.
#include "kernels/image.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>

#include "kernels/bsr_linear/rows.h"

namespace sparseloom::testing {
namespace {

constexpr Direction kDirections[] = {Direction::forward, Direction::dx, Direction::dw};

Case ragged(Direction direction) {
  Case c;
  c.direction = direction, c.m = 11, c.rows = 61, c.cols = 75, c.block = {16, 32}, c.density = 0.5;
  c.stride_padding = 3, c.values_shift = 1, c.bias = direction == Direction::forward;
  return c;
}

// A call on a copy of its image, as a device would have it.
std::vector<std::byte> run_on(const Image& image, const kernels::Kernel& kernel) {
  const std::size_t size = (image.bytes().size() + 255) / 256 * 256;
  const std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(std::aligned_alloc(256, size)), &std::free);
  std::memcpy(memory.get(), image.bytes().data(), image.bytes().size());
  EXPECT_EQ(kernel.launch(image.args(memory.get()), {}, Executor::serial()), 0);
  return {memory.get(), memory.get() + image.bytes().size()};
}

TEST(Image, ACallOnACopyGivesWhatACallInPlaceGives) {
  for (const Direction direction : kDirections)
    for (const double density : {0.0, 0.5}) {
      Case c = ragged(direction);
      c.density = density;
      Instance instance(c);
      const Image image(instance, 0);
      const kernels::Kernel kernel = kernels::reference_kernel();
      const std::vector<std::byte> after = run_on(image, kernel);
      EXPECT_EQ(image.damage(after), "") << describe(c);
      EXPECT_EQ(image.output(after).bytes, instance.run(kernel, Executor::serial()).bytes) << describe(c);
    }
}

TEST(Image, AnswersAreTheReferencesOwn) {
  for (const Direction direction : kDirections)
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      Case c = ragged(direction);
      c.dtype = dtype, c.integers = true;
      Instance instance(c);
      expect_exact(instance, instance.run(kernels::reference_kernel(), Executor::serial()),
                   instance.answer());
    }
}

TEST(Image, PointersThatTheCallHasNotAreNull) {
  Case c = ragged(Direction::forward);
  c.bias = false, c.density = 0;
  Instance instance(c);
  const Image image(instance, 0);
  std::vector<std::byte> copy = image.bytes();
  const MatmulArgs args = image.args(copy.data());
  EXPECT_EQ(args.b, nullptr);
  EXPECT_EQ(args.bias, nullptr);
  EXPECT_EQ(args.index.col, nullptr);
  EXPECT_EQ(args.transposed.ccol, nullptr);
  EXPECT_EQ(args.workspace, nullptr);
  EXPECT_NE(args.index.crow, nullptr);
  EXPECT_NE(args.out, nullptr);
}

TEST(Image, EveryStrayByteIsNamed) {
  for (const Direction direction : kDirections) {
    Instance instance(ragged(direction));
    const Image image(instance, 100);
    std::vector<std::byte> after = image.bytes();
    const Matrix out = instance.poisoned_output();
    const std::size_t element = size_of(out.dtype);
    std::vector<bool> may_change(after.size());
    for (const Image::Place& p : image.places()) {
      if (p.source) continue;
      for (std::size_t i = 0; i < p.bytes; ++i) {
        const auto at = static_cast<std::int64_t>(i / element) - out.offset;
        may_change[p.offset + i] =
            p.name == std::string("workspace") || (at >= 0 && at % out.stride < out.cols);
      }
    }
    for (std::size_t i = 0; i < after.size(); ++i) {
      const std::byte before = after[i];
      after[i] = ~before;
      ASSERT_EQ(image.damage(after).empty(), may_change[i]) << name_of(direction) << " byte " << i;
      after[i] = before;
      if (i % 3 != 0) ++i;  // every class of bytes is met, at two thirds of the time
    }
  }
}

TEST(Image, RefreshTakesNewOperands) {
  Instance instance(ragged(Direction::dx));
  Image image(instance, 0);
  const kernels::Kernel kernel = kernels::reference_kernel();
  const Matrix before = image.output(run_on(image, kernel));
  instance.dy.set(2, 5, 9);
  image.refresh();
  const Matrix after = image.output(run_on(image, kernel));
  EXPECT_NE(before.bytes, after.bytes);
  EXPECT_EQ(after.bytes, instance.run(kernel, Executor::serial()).bytes);
}

TEST(Tf32, RoundsToNearestTiesAway) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_tf32(1.0f), 1.0f);
  EXPECT_EQ(to_tf32(1 + 0x1p-10f), 1 + 0x1p-10f);
  EXPECT_EQ(to_tf32(1 + 0x1p-11f), 1 + 0x1p-10f);  // a tie
  EXPECT_EQ(to_tf32(-1 - 0x1p-11f), -1 - 0x1p-10f);
  EXPECT_EQ(to_tf32(1 + 0x3p-11f),
            1 + 0x1p-9f);  // a tie again, whose even neighbour nearest-even would take too
  EXPECT_EQ(to_tf32(1 + 0x1p-11f - 0x1p-23f), 1.0f);
  EXPECT_EQ(to_tf32(2 - 0x1p-23f), 2.0f);
  EXPECT_EQ(to_tf32(std::numeric_limits<float>::max()), inf);
  EXPECT_EQ(to_tf32(-inf), -inf);
  EXPECT_EQ(to_tf32(0x1p-149f), 0.0f);
  EXPECT_EQ(to_tf32(0x1p-136f), 0x1p-136f);  // half of the spacing of TF32's denormals is 2^-137
  EXPECT_EQ(to_tf32(0x1p-137f), 0x1p-136f);
  for (const std::uint32_t bits : {0x7fc00000u, 0x7fffffffu, 0xffffffffu, 0x7f800001u})
    EXPECT_TRUE(std::isnan(to_tf32(std::bit_cast<float>(bits)))) << bits;
}

TEST(Tf32, AnswersSeeTheRounding) {
  Case c;
  c.m = 8, c.rows = 16, c.cols = 64, c.block = {8, 8}, c.density = 1;
  const Instance::Answer plain = Instance(c).answer();
  c.tf32 = true;
  const Instance::Answer rounded = Instance(c).answer();
  EXPECT_EQ(plain.exact, rounded.exact);
  double worst = 0, worst_rounded = 0;
  for (std::size_t i = 0; i < plain.exact.size(); ++i) {
    worst = std::max(worst, std::abs(plain.plain[i] - plain.exact[i]));
    worst_rounded = std::max(worst_rounded, std::abs(rounded.plain[i] - rounded.exact[i]));
  }
  EXPECT_LT(worst, 1e-5);
  EXPECT_GT(worst_rounded, 1e-4);  // 64 products of operands rounded by up to 2^-12 each
  EXPECT_LT(worst_rounded, 64 * 0x1p-10);
}

}  // namespace
}  // namespace sparseloom::testing
