// The tiles of the fp32 forward and dX kernels, and the choice among them. The row chooses; the launcher
// looks up.
#pragma once

#include <cstdint>

namespace sparseloom::kernels::cuda::ffma {

/// Tokens x outputs of a thread block. Tiles of few outputs are for blocks with that side; larger blocks are
/// divided.
enum class ForwardShape : std::uint8_t { t128x64, t256x32, t256x16, t256x8, t64x32 };

struct ForwardExtent {
  int tokens, outputs;
};

constexpr ForwardExtent extent(ForwardShape shape) {
  switch (shape) {
    case ForwardShape::t128x64: return {128, 64};
    case ForwardShape::t256x32: return {256, 32};
    case ForwardShape::t256x16: return {256, 16};
    case ForwardShape::t256x8: return {256, 8};
    default: return {64, 32};
  }
}

inline constexpr ForwardShape kForwardShapes[] = {ForwardShape::t128x64, ForwardShape::t256x32,
                                                  ForwardShape::t256x16, ForwardShape::t256x8,
                                                  ForwardShape::t64x32};

inline std::int64_t forward_tiles(ForwardShape shape, std::int64_t m, std::int64_t width) {
  const ForwardExtent tile = extent(shape);
  return ((m + tile.tokens - 1) / tile.tokens) * ((width + tile.outputs - 1) / tile.outputs);
}

/// The widest tile that a block's side can hold. For blocks of 32 and more, a short tile replaces a tall one
/// that would leave a multiprocessor with fewer than two thread blocks: a thread with 4 x 4 sums is slower
/// than one with 8 x 8 (measured), but there are four times as many thread blocks.
inline ForwardShape choose_forward(int block_row_side, std::int64_t m, std::int64_t width,
                                   int multiprocessors) {
  if (block_row_side == 8) return ForwardShape::t256x8;
  if (block_row_side == 16) return ForwardShape::t256x16;
  const ForwardShape tall = block_row_side == 32 ? ForwardShape::t256x32 : ForwardShape::t128x64;
  return forward_tiles(tall, m, width) < 2 * std::int64_t{multiprocessors} ? ForwardShape::t64x32 : tall;
}

}  // namespace sparseloom::kernels::cuda::ffma
