// The representation of pixels in the kernels that gather them: the number of a pixel in its tensor [images,
// .., pixels], and its position along the three axes of space, which says whether it is inside.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_conv/walk.h"

namespace sparseloom::kernels::cuda {

using conv::Axis, conv::Walk;

/// A pixel, or the offset of a tap. kNowhere along an axis stays outside whatever tap is added.
struct alignas(16) Pixel {
  std::int32_t number, place[3];
};
inline constexpr std::int32_t kNowhere = -(1 << 30);
inline constexpr Pixel kNoPixel{0, {kNowhere, kNowhere, kNowhere}};

/// The gathered pixel of walked pixel `walked`, which exists, for the walk's first tap. at(axis, place)
/// receives the walked pixel's position along each axis, the innermost first, and image(number) then its
/// image.
template <class At, class Image>
__device__ __forceinline__ Pixel pixel_under(const Walk (&walk)[3], unsigned walked, At at, Image image) {
  int place[3];
#pragma unroll
  for (int i = 2; i >= 0; --i) {
    const auto extent = static_cast<unsigned>(walk[i].walked);
    const unsigned left = walked / extent;
    place[i] = static_cast<int>(walked - left * extent);
    walked = left;
  }
  Pixel pixel;
  pixel.number = static_cast<int>(walked);
  image(pixel.number);
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    at(i, place[i]);
    pixel.place[i] = walk[i].first + place[i] * walk[i].step;
    pixel.number = pixel.number * walk[i].gathered + pixel.place[i];
  }
  return pixel;
}

/// Tap `number` of the walk: the offset that it adds to a pixel, its index in the kernel, and the bits of
/// `insides` that say whether the pixel stays inside.
struct Tap {
  Pixel adds;
  std::int32_t of_kernel;
  std::uint32_t needs;
};
/// Bits that no pixel has: one bit of `insides` is never set.
inline constexpr std::uint32_t kNeedsTooMuch = ~0u;
__device__ __forceinline__ Tap tap_of(const Walk (&walk)[3], const Axis (&axis)[3], unsigned number) {
  int tap[3];
#pragma unroll
  for (int i = 2; i >= 0; --i) {
    const auto taps = static_cast<unsigned>(walk[i].taps);
    const unsigned left = number / taps;
    tap[i] = static_cast<int>(number - left * taps);
    number = left;
  }
  Tap result{};
  unsigned bit = 0;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    result.needs |= 1u << (bit + static_cast<unsigned>(tap[i])) % 32;
    bit += static_cast<unsigned>(walk[i].taps);
    result.adds.place[i] = tap[i] * walk[i].tap_step;
    result.adds.number = result.adds.number * walk[i].gathered + result.adds.place[i];
    result.of_kernel = result.of_kernel * axis[i].kernel + walk[i].tap_first + tap[i] * walk[i].tap_each;
  }
  return result;
}

/// The number of the pixel that a tap moves `pixel` to; -1 outside the tensor.
__device__ __forceinline__ std::int32_t moved(const Pixel& pixel, const Pixel& tap, const Walk (&walk)[3]) {
  const bool inside =
      static_cast<unsigned>(pixel.place[0] + tap.place[0]) < static_cast<unsigned>(walk[0].gathered) &&
      static_cast<unsigned>(pixel.place[1] + tap.place[1]) < static_cast<unsigned>(walk[1].gathered) &&
      static_cast<unsigned>(pixel.place[2] + tap.place[2]) < static_cast<unsigned>(walk[2].gathered);
  return inside ? pixel.number + tap.number : -1;
}

/// A bit per tap along each axis, the outermost axis first: whether `pixel` stays inside along that axis. For
/// convolutions with few_taps: a copy under a tap then tests bits instead of three positions.
__device__ __forceinline__ std::uint32_t insides(const Pixel& pixel, const Walk (&walk)[3]) {
  std::uint32_t bits = 0, bit = 1;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    int place = pixel.place[i];
    for (int tap = 0; tap < walk[i].taps; ++tap, place += walk[i].tap_step, bit <<= 1)
      if (static_cast<unsigned>(place) < static_cast<unsigned>(walk[i].gathered)) bits |= bit;
  }
  return bits;
}

/// A gathered pixel for the walk's first tap, and its `insides`.
struct alignas(8) Under {
  std::int32_t number;
  std::uint32_t inside;
};

}  // namespace sparseloom::kernels::cuda
