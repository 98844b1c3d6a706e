// The tokens of a convolution's products: the pixels that a walk (bsr_conv/walk.h) gathers under a tap. The
// depth of a product runs over (channel block, tap, channel), so that the blocks of a list are contiguous in
// the stored values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/bsr_conv/walk.h"
#include "kernels/shared/cpu/cell.h"
#include "sparseloom/matmul_args.h"

namespace sparseloom::kernels::cpu {

/// One tensor, as gathered by a walk.
struct Pixels {
  conv::Walk axis[3];
  const std::byte* in;
  std::int64_t pixel_bytes, channels;
  std::int64_t side;  // side of a block along the channels
  DType dtype;

  std::int64_t taps() const { return std::int64_t{axis[0].taps} * axis[1].taps * axis[2].taps; }
  std::int64_t walked() const { return std::int64_t{axis[0].walked} * axis[1].walked * axis[2].walked; }
};

/// The row read outside of the tensor and for absent tokens: zeros, as long as a row of a block.
alignas(64) inline constexpr std::byte kNoPixel[kMaxBlock * sizeof(float)] = {};

/// The gathered pixels of a run of walked tokens.
class PixelRows {
 public:
  static constexpr int kMost = 64;

  /// `count` tokens from `token` on; kMost at most.
  PixelRows(const Pixels& pixels, std::int64_t token, std::int64_t count)
      : pixels_(pixels), count_(static_cast<int>(count)) {
    const conv::Walk(&w)[3] = pixels.axis;
    int at[3];
    std::int64_t rest = token, image;
    for (int a = 2; a >= 0; --a) at[a] = static_cast<int>(rest % w[a].walked), rest /= w[a].walked;
    image = rest;
    for (int i = 0; i < count_; ++i) {
      for (int a = 0; a < 3; ++a) place_[a][i] = w[a].first + at[a] * w[a].step;
      first_[i] = ((image * w[0].gathered + place_[0][i]) * w[1].gathered + place_[1][i]) * w[2].gathered +
                  place_[2][i];
      if (++at[2] < w[2].walked) continue;
      at[2] = 0;
      if (++at[1] < w[1].walked) continue;
      at[1] = 0;
      if (++at[0] == w[0].walked) at[0] = 0, ++image;
    }
  }

  /// Finds the channels of depth block `block` under tap `block % taps` of each token, and returns how many
  /// exist. Rows from `count` to `rows` on are kNoPixel.
  std::int64_t find(std::int64_t block, const void** rows, int count) const {
    const conv::Walk(&w)[3] = pixels_.axis;
    const std::int64_t taps = pixels_.taps(), channel = block / taps * pixels_.side;
    const int tap = static_cast<int>(block % taps);
    const int tz = tap / (w[1].taps * w[2].taps) * w[0].tap_step,
              ty = tap / w[2].taps % w[1].taps * w[1].tap_step, tx = tap % w[2].taps * w[2].tap_step;
    const std::int64_t shift = (std::int64_t{tz} * w[1].gathered + ty) * w[2].gathered + tx;
    const std::byte* const base = pixels_.in + channel * static_cast<std::int64_t>(size_of(pixels_.dtype));
    const auto inside = [](int at, int extent) {
      return static_cast<unsigned>(at) < static_cast<unsigned>(extent);
    };
    for (int i = 0; i < count_; ++i) {
      const bool is = inside(place_[0][i] + tz, w[0].gathered) & inside(place_[1][i] + ty, w[1].gathered) &
                      inside(place_[2][i] + tx, w[2].gathered);
      rows[i] = is ? base + (first_[i] + shift) * pixels_.pixel_bytes : kNoPixel;
    }
    for (int i = count_; i < count; ++i) rows[i] = kNoPixel;
    return std::min(pixels_.side, pixels_.channels - channel);
  }

 private:
  const Pixels& pixels_;
  int count_;
  int place_[3][kMost];        // position along each axis, before the tap's shift
  std::int64_t first_[kMost];  // the same position as a pixel of the tensor
};

}  // namespace sparseloom::kernels::cpu
