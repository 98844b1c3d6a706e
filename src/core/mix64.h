// The mixing function of SplitMix64, for the host and CUDA kernels.
#pragma once

#include <cstdint>

#include "core/on_device.h"

namespace sparseloom::core {

/// SplitMix64's output function (Steele, Lea & Flood 2014): a bijection in which every input bit affects
/// every output bit.
SPARSELOOM_ON_DEVICE_TOO constexpr std::uint64_t mix64(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// 2^64 / golden ratio, made odd: the increment of SplitMix64.
inline constexpr std::uint64_t kGoldenGamma = 0x9e3779b97f4a7c15u;

}  // namespace sparseloom::core
