// Whether block rows are much longer than the mean.
#pragma once

#include <cstdint>
#include <span>

namespace sparseloom::plan {

/// A launch with one warp group for each block row waits for the longest. From this many times the mean on,
/// kernels that divide the blocks evenly were measured faster.
inline constexpr double kUnevenRow = 1.5;
/// A tile of kGroup block rows that has more blocks than this many times the mean delays its thread block by
/// a round. (sm90_mma takes 32 block rows of 16 as one tile.)
inline constexpr std::int64_t kGroup = 32;
inline constexpr double kUnevenGroup = 1.2;

/// Whether `group` consecutive block rows, counted from a multiple of that number, together have more than
/// `most` times the mean number of blocks of such groups. lengths: the number of blocks of each block row.
bool uneven(std::span<const std::int64_t> lengths, std::int64_t group, double most);

}  // namespace sparseloom::plan
