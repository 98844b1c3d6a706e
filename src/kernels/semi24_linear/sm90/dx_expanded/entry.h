// The entries of dx_expanded, one for each instance of kernel.cuh. Each is a translation unit of its own.
#pragma once

#include <cstdint>

#include "sparseloom/matmul_args.h"
#include "sparseloom/semi24.h"

namespace sparseloom::kernels::cuda {

namespace semi24_dx {

/// The tiles, in features x tokens. In the first two the warpgroups divide the reduction and not the tile,
/// and a cluster may divide it further.
struct TileShape {
  int inputs, tokens;
  bool divides;
};
inline constexpr TileShape kTiles[] = {{128, 16, true}, {128, 64, true}, {256, 128, false}};
inline constexpr int kTileCount = 3, kMostRanks = 8;
/// Rows of W in a stage of the ring, and the in features whose positions are whole words of a row.
inline constexpr int kDepth = 64, kInputsMultiple = 32;

int dx_bf16_16(const MatmulArgs& args, const Semi24View& w, int ranks) noexcept;
int dx_bf16_64(const MatmulArgs& args, const Semi24View& w, int ranks) noexcept;
int dx_bf16_128(const MatmulArgs& args, const Semi24View& w, int ranks) noexcept;
int dx_f16_16(const MatmulArgs& args, const Semi24View& w, int ranks) noexcept;
int dx_f16_64(const MatmulArgs& args, const Semi24View& w, int ranks) noexcept;
int dx_f16_128(const MatmulArgs& args, const Semi24View& w, int ranks) noexcept;

}  // namespace semi24_dx

/// dX of 16-bit operands by wgmma and TMA (compute capability 9.0 only), with tile kTiles[tile], whose
/// reduction is divided over a cluster of `ranks` thread blocks: 1, and if the tile divides it also 2, 4 or
/// 8, at most one per kDepth rows of W. cols is a multiple of kInputsMultiple; dY, values and out are aligned
/// to 16 bytes, and so are the rows of dY and out; positions are aligned to 4 bytes.
int sm90_semi24_dx(const MatmulArgs& args, const Semi24View& w, int tile, int ranks) noexcept;

}  // namespace sparseloom::kernels::cuda
