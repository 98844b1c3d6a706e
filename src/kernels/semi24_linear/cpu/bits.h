// The positions of 2:4 weights as a bitmap (sparseloom/bitmap.h), which bitmap_linear's kernels multiply:
// they lie as the bits do, a byte for eight columns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sparseloom/bitmap.h"
#include "sparseloom/executor.h"
#include "sparseloom/semi24.h"

namespace sparseloom::kernels::cpu {

/// Bytes of the bitmap of a matrix.
std::size_t bits_workspace(const Semi24View& w);

/// Writes the bitmap to `room`, of bits_workspace() bytes at a multiple of 64. Elements stored beyond the
/// last column, zeros, have bits as well. Needs AVX2.
BitmapView bitmap_of(const Semi24View& w, std::byte* room, const Executor& executor);

/// Writes `count` bytes of bits of as many bytes of positions, by AVX2.
void bits_of_positions_avx2(const std::uint8_t* positions, std::int64_t count, std::uint8_t* bits);

}  // namespace sparseloom::kernels::cpu
