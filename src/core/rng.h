// A small splittable random generator that gives the same numbers on every machine, which std:: distributions
// do not promise.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "core/mix64.h"

namespace sparseloom::core {

/// xoshiro256** (Blackman & Vigna 2018), with its state filled by SplitMix64.
class Rng {
 public:
  constexpr explicit Rng(std::uint64_t seed) noexcept : seed_(seed) {
    std::uint64_t counter = seed;
    for (std::uint64_t& word : state_) word = mix64(counter += kGoldenGamma);
  }

  /// An independent stream. It does not depend on how much was drawn from this one, so a loop may draw its
  /// items in any order.
  constexpr Rng split(std::uint64_t stream) const noexcept {
    return Rng(mix64(seed_ ^ mix64(stream + kGoldenGamma)));
  }

  constexpr std::uint64_t next() noexcept {
    const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  /// Uniform in [0, bound), without bias; bound >= 1. Uses multiply and reject (Lemire 2019), which nearly
  /// always needs one multiplication.
  constexpr std::uint64_t below(std::uint64_t bound) noexcept {
    Wide product = Wide{next()} * bound;
    if (static_cast<std::uint64_t>(product) < bound) {
      const std::uint64_t reject_under = (0 - bound) % bound;  // 2^64 mod bound
      while (static_cast<std::uint64_t>(product) < reject_under) product = Wide{next()} * bound;
    }
    return static_cast<std::uint64_t>(product >> 64);
  }

  /// Uniform in [0, 1), a multiple of 2^-53.
  constexpr double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  __extension__ using Wide = unsigned __int128;
  std::uint64_t seed_;
  std::array<std::uint64_t, 4> state_{};
};

}  // namespace sparseloom::core
