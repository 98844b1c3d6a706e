// Whether block rows are much longer than the mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sparseloom/plan.h"

namespace sparseloom::plan {

/// A launch with one warp group per block row waits for the longest. From this many times the mean on,
/// kernels that divide the blocks evenly measured faster.
inline constexpr double kUnevenRow = 1.5;
/// A tile of kGroup block rows that has more blocks than this many times the mean delays its thread block by
/// a wave. (sm90_mma takes 32 block rows of 16 as one tile.)
inline constexpr std::int64_t kGroup = 32;
inline constexpr double kUnevenGroup = 1.2;

/// Whether `group` consecutive block rows, counted from a multiple of that number, together have more than
/// `most` times the mean number of blocks of such groups. lengths: the number of blocks of each block row.
bool uneven(std::span<const std::int64_t> lengths, std::int64_t group, double most);

/// The longest of `count` block rows of `mean` blocks, of at most `most`, if blocks lie at random: the
/// expected value, and with kSurelyChance a value that few random patterns exceed.
inline constexpr double kSurelyChance = 2;
double longest_by_chance(double mean, std::size_t count, std::int64_t most, double more);

/// The ratio of the longest block row to the mean, as far as its class tells.
double longest_over_mean(Longest longest, double mean, std::size_t count, std::int64_t most);

}  // namespace sparseloom::plan
