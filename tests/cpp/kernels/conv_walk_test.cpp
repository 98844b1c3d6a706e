// How the CUDA kernels of convolutions walk pixels, against the definition: x pixel p stride - padding + tap
// dilation lies under pixel p of the output.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "kernels/bsr_conv/walk.h"

namespace sparseloom::testing {
namespace {

using kernels::conv::Axis;
using kernels::conv::Walk;

/// Every axis with a few values of each extent.
std::vector<Axis> axes() {
  std::vector<Axis> list;
  for (const int in : {1, 2, 7, 12})
    for (const int kernel : {1, 2, 3, 5})
      for (const int stride : {1, 2, 3, 4})
        for (const int padding : {0, 1, 3})
          for (const int dilation : {1, 2, 3}) {
            const int room = in + 2 * padding - dilation * (kernel - 1) - 1;
            if (room >= 0) list.push_back({in, room / stride + 1, kernel, stride, padding, dilation});
          }
  return list;
}

using Pairs = std::vector<std::pair<int, int>>;  // of a tap of the kernel and a gathered pixel

/// What a walk gathers under one of its pixels.
Pairs gathered_under(const Walk& walk, int pixel) {
  Pairs pairs;
  for (int tap = 0; tap < walk.taps; ++tap) {
    const int at = walk.first + pixel * walk.step + tap * walk.tap_step;
    if (at >= 0 && at < walk.gathered) pairs.push_back({walk.tap_first + tap * walk.tap_each, at});
  }
  return pairs;
}

TEST(ConvWalk, ForwardGathersWhatLiesUnderTheTaps) {
  for (const Axis& axis : axes()) {
    const Walk walk = kernels::conv::walk_forward(axis);
    ASSERT_EQ(walk.walked, axis.out);
    for (int p = 0; p < axis.out; ++p) {
      Pairs expected;
      for (int tap = 0; tap < axis.kernel; ++tap) {
        const int x = p * axis.stride - axis.padding + tap * axis.dilation;
        if (x >= 0 && x < axis.in) expected.push_back({tap, x});
      }
      ASSERT_EQ(gathered_under(walk, p), expected);
      ASSERT_EQ(walk.own_first + p * walk.own_step, p);
    }
  }
}

TEST(ConvWalk, ClassesOfDxTakeEachPixelOnceAndGatherItsPairs) {
  for (const Axis& axis : axes()) {
    std::vector<int> taken(static_cast<std::size_t>(axis.in));
    for (int rest = 0; rest < axis.stride; ++rest) {
      const Walk walk = kernels::conv::walk_dx(axis, rest);
      for (int p = 0; p < walk.walked; ++p) {
        const int own = walk.own_first + p * walk.own_step;
        ASSERT_TRUE(own >= 0 && own < axis.in);
        ++taken[static_cast<std::size_t>(own)];
        Pairs expected;
        for (int tap = 0; tap < axis.kernel; ++tap)
          for (int q = 0; q < axis.out; ++q)
            if (q * axis.stride - axis.padding + tap * axis.dilation == own) expected.push_back({tap, q});
        ASSERT_EQ(gathered_under(walk, p), expected)
            << "in " << axis.in << " kernel " << axis.kernel << " stride " << axis.stride << " padding "
            << axis.padding << " dilation " << axis.dilation << " pixel " << own;
      }
    }
    ASSERT_TRUE(std::all_of(taken.begin(), taken.end(), [](int times) { return times == 1; }));
  }
}

// The sanitizers' build fails where a product of two numbers of a window leaves 31 bits.
TEST(ConvWalk, DxTakesTheLargestStrideAndDilation) {
  const int most = (1 << 16) - 1;
  const Walk walk = kernels::conv::walk_dx({1 << 20, 16, 2, most, 0, most - 1}, 0);
  EXPECT_EQ(walk.walked, 17);
  EXPECT_EQ(walk.taps, 1);
  EXPECT_EQ(walk.tap_step, -(most - 1));
  EXPECT_EQ(gathered_under(walk, 15), (Pairs{{0, 15}}));
}

TEST(ConvWalk, ShapeCountsTapsAndClasses) {
  const kernels::conv::Shape shape{{{4, 4, 3, 1, 1, 1}, {5, 3, 2, 2, 1, 1}, {9, 2, 5, 3, 0, 1}}, 7};
  EXPECT_EQ(shape.taps(), 3 * 2 * 5);
  EXPECT_EQ(shape.strides(), 1 * 2 * 3);
}

}  // namespace
}  // namespace sparseloom::testing
