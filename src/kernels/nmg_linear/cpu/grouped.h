// The grouped kernels of n:m:g weights, forward: x is transposed into tiles of tokens, so that a vector holds
// one input of many tokens. The inputs of a pattern are loaded once for the g outputs that use it, whose sums
// are in L1. AVX2 only: Zen 4 issues two 256-bit FMAs per cycle or one of 512 bits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/check.h"
#include "kernels/runs.h"
#include "kernels/shared/cpu/cell.h"
#include "sparseloom/executor.h"
#include "sparseloom/matmul_args.h"
#include "sparseloom/nmg.h"

namespace sparseloom::kernels::cpu {

/// Vectors of tokens of the widest tile.
inline constexpr std::int64_t kMostVectors = 4;

/// A tile of tokens: `vectors` vectors wide, or none for a single token, from token `first` on; x transposed
/// at `x` [strips * m, tokens of the tile] in fp32.
struct TokenTile {
  std::int64_t first, vectors;
  float* x;
};

inline constexpr std::int64_t tokens_of(std::int64_t lanes, std::int64_t vectors) noexcept {
  return vectors == 0 ? 1 : vectors * lanes;
}

/// Elements of the sums of a chunk [chunk rows, tokens of the tile], with one more vector, in whole lines.
inline std::int64_t sums_of(std::int64_t lanes, std::int64_t vectors, const NmgView& w) noexcept {
  return core::round_up(w.chunk_rows() * tokens_of(lanes, vectors) + lanes, kLineCells);
}

/// Strips whose products are added to an output one after another: some 512 products, since longer chains of
/// additions lose precision.
inline std::int64_t strips_at_once(const NmgView& w) noexcept { return std::max<std::int64_t>(1, 512 / w.n); }

struct GroupedJob {
  const MatmulArgs& args;
  NmgView w;
};

/// A kernel of one instruction set and dtype.
struct GroupedOps {
  Runs* runs;
  std::int64_t lanes;
  /// Transposes the inputs of the strips [begin, end) of a tile; for a single token, of all strips.
  void (*pack_x)(const GroupedJob& job, const TokenTile& tile, std::int64_t begin, std::int64_t end);
  /// Multiplies one chunk with a tile. sums: sums_of() elements, and as many after them if there are more
  /// strips than strips_at_once(); values: [chunk rows, n].
  void (*chunk)(const GroupedJob& job, const TokenTile& tile, std::int64_t chunk, float* sums, float* values);
};

/// The kernel, or null.
const GroupedOps* grouped_avx2(DType dtype) noexcept;

/// Vectors per full tile: as many as m tokens fill and as fit in L1 beside the sums of a chunk; 0 for a
/// single token.
std::int64_t grouped_vectors(std::int64_t lanes, std::int64_t m, std::int64_t chunk_rows) noexcept;
std::size_t grouped_workspace(std::int64_t lanes, std::int64_t m, const NmgView& w,
                              std::int64_t threads) noexcept;
void run_grouped(const GroupedOps& ops, const MatmulArgs& args, const NmgView& w, const Executor& executor);

}  // namespace sparseloom::kernels::cpu
