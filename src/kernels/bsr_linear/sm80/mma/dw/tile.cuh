// Tiles of the dW kernel in shared memory, laid out [tokens][columns] like the matrices, and their copies
// from global memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/shared/ptx/cp_async.cuh"

namespace sparseloom::kernels::cuda::mma::dw {

// Four warps: two or three thread blocks fit on a multiprocessor, so that one multiplies while another waits
// at its barrier.
inline constexpr int kThreads = 128;

__host__ __device__ constexpr int least(int a, int b) { return a < b ? a : b; }
__host__ __device__ constexpr int most(int a, int b) { return a > b ? a : b; }

/// Rows of 16-byte chunks, one row per token. A warp reads one operand register from several tokens at the
/// same columns: 8 tokens x 1 chunk (ldmatrix) or 4 tokens x 2 chunks (32-bit loads). The chunk's index is
/// xored with the token's, so that these 128 bytes lie in different banks. There is no padding, so every
/// chunk stays aligned.
template <class Word, int kColumns>
struct SharedTile {
  static constexpr int kPerChunk = 16 / sizeof(Word);
  static constexpr int kChunks = kColumns / kPerChunk;
  static constexpr int kPitch = kColumns * sizeof(Word);  // bytes from token to token
  static constexpr int kUnit = sizeof(Word) / 2;          // adjacent chunks of one read
  static constexpr int kUnits = kChunks / kUnit;
  static constexpr int kBankUnits = 8 / kUnit;  // units in the 128 bytes of all banks
  static_assert(kUnits >= 1, "a row must hold the chunks of one read");

  static __device__ __forceinline__ int offset(int token, int chunk) {
    // Several short rows share the 128 bytes of all banks, which already separates those tokens.
    const int turn = token / most(1, kBankUnits / kUnits) % least(kUnits, kBankUnits);
    return token * kPitch + (chunk ^ turn * kUnit) * 16;
  }
};

/// One thread's copies of a tile: the same chunk of every kPassTokens-th token.
template <class Word, class Tile, int kTokens>
struct TileSource {
  static constexpr int kPassTokens = kThreads / Tile::kChunks;
  static constexpr int kPasses = most(1, kTokens / kPassTokens);
  static_assert(kThreads % Tile::kChunks == 0 && (kTokens % kPassTokens == 0 || kPassTokens > kTokens),
                "whole passes must fill the tile");

  const std::byte* next;   // this thread's chunk in the next pass; never read beyond `bytes`
  std::int64_t pass_step;  // bytes
  int token;               // of the tile, in pass 0
  int chunk;
  int bytes;  // of the chunk inside the matrix; the rest is filled with zeros
  enum class Way { none, whole, edge, elements } way;

  static __device__ __forceinline__ int chunk_of_thread() { return threadIdx.x % Tile::kChunks; }

  /// `column`: the matrix column of this thread's chunk. `wanted`: false if no stored block contains it.
  /// `by_chunks`: base and stride are multiples of 16 bytes.
  __device__ __forceinline__ TileSource(const void* matrix, std::int64_t stride, std::int64_t first_token,
                                        std::int64_t columns, std::int64_t column, bool wanted,
                                        bool by_chunks) {
    token = threadIdx.x / Tile::kChunks;
    chunk = chunk_of_thread();
    const std::int64_t inside = columns - column;
    bytes = inside >= Tile::kPerChunk ? 16 : inside > 0 ? static_cast<int>(inside * sizeof(Word)) : 0;
    way = !wanted || token >= kTokens ? Way::none
          : !by_chunks                ? Way::elements
          : bytes == 16               ? Way::whole
                                      : Way::edge;
    pass_step = least(kPassTokens, kTokens) * stride * static_cast<std::int64_t>(sizeof(Word));
    next = static_cast<const std::byte*>(matrix) +
           ((first_token + token) * stride + column) * static_cast<std::int64_t>(sizeof(Word));
  }
};

/// Reads up to 16 bytes element by element, followed by zeros: for matrices whose base or stride is not a
/// multiple of 16 bytes.
template <class Word>
__device__ __forceinline__ uint4 read_elements(const std::byte* source, int bytes) {
  std::uint32_t words[4];
  const Word* elements = reinterpret_cast<const Word*>(source);
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    words[w] = w * 4 < bytes ? std::uint32_t{elements[w * 4 / sizeof(Word)]} : 0u;
    if constexpr (sizeof(Word) == 2)
      words[w] |= w * 4 + 2 < bytes ? std::uint32_t{elements[w * 2 + 1]} << 16 : 0u;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/// Loads the next kTokens tokens, of which the first `valid` exist; the others become zeros. The data is
/// visible to this thread after its next commit and wait, to the others after a barrier.
template <class Word, class Tile, int kTokens>
__device__ __forceinline__ void load_tile(TileSource<Word, Tile, kTokens>& source, std::byte* tile,
                                          int valid) {
  using Source = TileSource<Word, Tile, kTokens>;
  if (source.way == Source::Way::none) return;
  const std::uint32_t tile_address = ptx::shared_address(tile);
  if (source.way == Source::Way::whole && valid == kTokens) {
#pragma unroll
    for (int pass = 0; pass < Source::kPasses; ++pass, source.next += source.pass_step) {
      ptx::cp_async_cg(tile_address + Tile::offset(source.token + pass * Source::kPassTokens, source.chunk),
                       source.next, 16);
    }
  } else if (source.way != Source::Way::elements) {  // a partial copy takes 12 instructions, not 3
#pragma unroll 1
    for (int pass = 0; pass < Source::kPasses; ++pass, source.next += source.pass_step) {
      const int token = source.token + pass * Source::kPassTokens;
      ptx::cp_async_cg(tile_address + Tile::offset(token, source.chunk), source.next,
                       token < valid ? source.bytes : 0);
    }
  } else {
#pragma unroll 1
    for (int pass = 0; pass < Source::kPasses; ++pass, source.next += source.pass_step) {
      const int token = source.token + pass * Source::kPassTokens;
      *reinterpret_cast<uint4*>(tile + Tile::offset(token, source.chunk)) =
          read_elements<Word>(source.next, token < valid ? source.bytes : 0);
    }
  }
}

}  // namespace sparseloom::kernels::cuda::mma::dw
