// Forward of n:m:g weights output by output: x is cut into blocks of strips that fit into L1, and W of a
// block is unpacked into entries, for each output the rows of the block and what they are multiplied with.
// The sums of four outputs are in registers for a block, so that a product takes a load and no store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/shared/cpu/share.h"
#include "sparseloom/executor.h"
#include "sparseloom/matmul_args.h"
#include "sparseloom/nmg.h"

namespace sparseloom::kernels::cpu {

struct GroupedOps;
struct TokenTile;

/// Outputs whose sums are in registers: with four vectors each, half of all.
inline constexpr std::int64_t kOutputsOfGroup = 4;

/// Blocks of which an output adds up the sums before they are set aside.
inline constexpr std::int64_t kBlocksAtOnce = 512;

/// The shape of a block. A row is an input of the block, or for pairs of bf16 two that an output may use
/// together: those of a pattern of two places, or one of each of two strips.
struct OutputBlocks {
  bool pairs;
  std::int64_t strips;   // of a block
  std::int64_t entries;  // of a block, for each output
  std::int64_t rows;     // of a block
};

struct OutputJob {
  const MatmulArgs& args;
  NmgView w;
  OutputBlocks blocks;
};

/// The buffers of a work item: sums and sums set aside, `of_tile` floats for each tile; the sums transposed
/// back; values of a strip in fp32; rows of pairs; the entries, [chunks, entries, outputs]; and the
/// slot of each output in the strips of a block.
struct OutputScratch {
  float *sums, *whole, *written, *values, *pairs, *weight;
  std::uint16_t *row, *inverse;
  std::int64_t of_tile;
};

/// Whether forward of m tokens multiplies output by output: patterns of one place, or pairs.
bool takes_outputs(const GroupedOps& ops, Direction direction, std::int64_t m, const NmgView& w);
/// Blocks for tiles of so many vectors.
OutputBlocks output_blocks(const GroupedOps& ops, const NmgView& w, std::int64_t vectors);
std::size_t outputs_workspace(const GroupedOps& ops, std::int64_t m, const NmgView& w, std::int64_t threads);
void run_outputs(const GroupedOps& ops, const MatmulArgs& args, const NmgView& w, const Executor& executor);

}  // namespace sparseloom::kernels::cpu
