// How im2col TMA is told to walk the pixels of a convolution; needs no GPU.
#include <gtest/gtest.h>

#include "kernels/bsr_conv/sm90/entry.h"
#include "kernels/bsr_conv/sm90/forward_wgmma/pixels.h"

namespace sparseloom::testing {
namespace {

using kernels::conv::Axis;
using kernels::conv::Shape;
namespace wgmma_conv = kernels::cuda::wgmma_conv;

Axis axis_of(int in, int kernel, int stride, int padding, int dilation) {
  return {in,      (in + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1, kernel, stride, padding,
          dilation};
}

TEST(ConvPixels, BasePixelsAndOffsetsMeetTheTaps) {
  for (const int kernel : {1, 2, 3, 5})
    for (const int padding : {0, 1, 3})
      for (const int dilation : {1, 2}) {
        for (const int stride : {1, 2, 3}) {
          const Axis axis = axis_of(17, kernel, stride, padding, dilation);
          const wgmma_conv::AxisWalk walk = wgmma_conv::axis_walk(axis, false);
          ASSERT_EQ(walk.walked, axis.out);
          for (int tap = 0; tap < kernel; ++tap) {
            ASSERT_GE(walk.tap_first + tap * walk.tap_step, 0);
            ASSERT_EQ(walk.first + 2 * walk.step + walk.tap_first + tap * walk.tap_step,
                      2 * stride - padding + tap * dilation);
          }
        }
        const Axis axis = axis_of(17, kernel, 1, padding, dilation);
        const wgmma_conv::AxisWalk walk = wgmma_conv::axis_walk(axis, true);
        ASSERT_EQ(walk.walked, axis.in);
        for (int tap = 0; tap < kernel; ++tap) {
          ASSERT_GE(walk.tap_first + tap * walk.tap_step, 0);
          ASSERT_EQ(walk.first + 5 * walk.step + walk.tap_first + tap * walk.tap_step,
                    5 + padding - tap * dilation);
        }
      }
}

TEST(ConvPixels, PossibleWithinTheBitsOfAMap) {
  const auto possible = [](const Axis& depth, const Axis& height, const Axis& width, bool dx) {
    return kernels::cuda::wgmma_conv_possible({{depth, height, width}, 2}, dx);
  };
  const Axis none, same = axis_of(28, 3, 1, 1, 1), half = axis_of(28, 3, 2, 1, 1);
  EXPECT_TRUE(possible(none, same, same, false));
  EXPECT_TRUE(possible(none, same, same, true));
  EXPECT_TRUE(possible(none, half, half, false));
  EXPECT_FALSE(possible(none, half, half, true));  // dX of a stride is for other kernels
  EXPECT_TRUE(possible(same, same, same, false));
  EXPECT_TRUE(possible(none, same, axis_of(1000, 128, 1, 64, 1), false));
  EXPECT_FALSE(possible(none, same, axis_of(1000, 128, 1, 64, 3), false));  // an offset of 381
  EXPECT_FALSE(possible(none, same, axis_of(1000, 3, 1, 129, 1), false));   // a corner at -129
  EXPECT_FALSE(possible(same, same, axis_of(64, 35, 1, 17, 1), false));     // three axes have 5 bits
  EXPECT_FALSE(possible(none, axis_of(90, 3, 9, 1, 1), same, false));       // steps of 8 at most
}

}  // namespace
}  // namespace sparseloom::testing
