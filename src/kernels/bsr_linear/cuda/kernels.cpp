// Registry rows of the CUDA kernels: what each refuses, how long it is predicted to take, and its launch.
#include "kernels/bsr_linear/cuda/kernels.h"

#include <algorithm>
#include <string>

#include "kernels/bsr_linear/cuda/cost.h"
#include "kernels/bsr_linear/cuda/launch.h"
#include "kernels/bsr_linear/sm90/forward_mma/entry.h"
#include "kernels/bsr_linear/sm90/forward_wgmma/entry.h"
#include "kernels/bsr_linear/sm90/merged/merge_blocks.h"

namespace sparseloom::kernels {

#ifdef SPARSELOOM_HAVE_CUDA
namespace {

using plan::Machine;
using runtime::Isa;

std::string refuse_mma(const Problem& p, const Machine&) {
  if (p.dtype == DType::f32 && !p.tf32)
    return "would round f32 operands to TF32, which torch.backends.cuda.matmul.allow_tf32 (or Problem::tf32) "
           "does not allow";
  return {};
}

std::string refuse_ffma(const Problem& p, const Machine&) {
  if (p.dtype != DType::f32 && p.dtype != DType::f8e4m3)
    return std::string("multiplies f32 and float8_e4m3fn only, the dtype is ") + name_of(p.dtype);
  return {};
}

std::string refuse_decode(const Problem& p, const Machine&) {
  if (p.direction == Direction::dw) return "does forward and dx only: dw reads both operands whole";
  if (p.m > cuda::kDecodeTokens)
    return "takes at most " + std::to_string(cuda::kDecodeTokens) + " tokens, the call has " +
           std::to_string(p.m);
  return {};
}

std::string refuse_decode_staged(const Problem& p, const Machine& machine) {
  if (std::string why = refuse_decode(p, machine); !why.empty()) return why;
  if (p.direction != Direction::forward) return "does forward only";
  if (size_of(p.dtype) != 2)
    return std::string("multiplies f16 and bf16 only, the dtype is ") + name_of(p.dtype);
  if (std::max(p.block.rows, p.block.cols) > cuda::kStagedBlock)
    return "takes blocks of at most " + std::to_string(cuda::kStagedBlock) + " on each side, the block is " +
           to_string(p.block);
  return {};
}

/// Refusals of both sm90_decode kernels. narrow_tokens: the most tokens with blocks of 16 x 16.
std::string refuse_decode90(const Problem& p, const Machine& machine, int narrow_tokens) {
  if (machine.cuda.sm != 90)
    return "needs a Hopper GPU (compute capability 9.0): its instructions exist nowhere else";
  if (p.direction != Direction::forward) return "does forward only";
  if (size_of(p.dtype) != 2)
    return std::string("multiplies f16 and bf16 only, the dtype is ") + name_of(p.dtype);
  const bool narrow = p.block == BlockShape{16, 16};
  if (!narrow && std::min(p.block.rows, p.block.cols) < 32)
    return "needs blocks of 16x16, or of 32 or more on both sides, the block is " + to_string(p.block);
  if (const int most = narrow ? narrow_tokens : cuda::kDecodeTokens; p.m > most)
    return "takes at most " + std::to_string(most) + " tokens with such blocks, the call has " +
           std::to_string(p.m);
  return {};
}

std::string refuse_odd_columns(const Problem& p) {
  if (p.cols % 8 == 0) return {};
  return "reads tokens 8 columns at a time: columns must be a multiple of 8, there are " +
         std::to_string(p.cols);
}

std::string refuse_decode_block_rows(const Problem& p, const Machine& machine) {
  if (std::string why = refuse_decode90(p, machine, cuda::kNarrowBlockRowTokens); !why.empty()) return why;
  if (p.facts.uneven_rows)
    return "gives each block row warps of its own, and some have more than 1.5 times the mean number of "
           "blocks";
  return refuse_odd_columns(p);
}

std::string refuse_hopper_decode(const Problem& p, const Machine& machine) {
  if (std::string why = refuse_decode90(p, machine, cuda::kXInSharedTokens); !why.empty()) return why;
  const bool narrow = p.block == BlockShape{16, 16};
  if (const std::int64_t rows = (p.rows + p.block.rows - 1) / p.block.rows; rows > cuda::kHopperDecodeRows)
    return "takes at most " + std::to_string(cuda::kHopperDecodeRows) + " block rows, there are " +
           std::to_string(rows);
  if (!narrow)
    if (std::string why = refuse_odd_columns(p); !why.empty()) return why;
  const std::int64_t column_bytes = p.m <= 8    ? 16
                                    : p.m <= 16 ? 32
                                                : 64,
                     most_cols = cuda::kXInSharedBytes / column_bytes * 8;
  if (narrow && p.cols > most_cols)
    return "keeps an eighth of the tokens' columns in shared memory: at most " + std::to_string(most_cols) +
           " columns, there are " + std::to_string(p.cols);
  return {};
}

std::string refuse_wgmma(const Problem& p, const Machine& machine) {
  if (machine.cuda.sm != 90)
    return "needs a Hopper GPU (compute capability 9.0): its instructions exist nowhere else";
  if (p.dtype == DType::i8) return "multiplies f16, bf16, float8_e4m3fn and TF32 only, the dtype is int8";
  if (p.dtype == DType::f32 && !p.tf32)
    return "would round f32 operands to TF32, which torch.backends.cuda.matmul.allow_tf32 (or Problem::tf32) "
           "does not allow";
  if (p.direction == Direction::dw && size_of(p.dtype) == 2) {
    if (cuda::sm90_wgmma_sdd_takes(p, machine.cuda.multiprocessors, false)) return {};
    return "does dw of blocks of 32 or more on both sides, and of 16 and 32 where block rows x cols / 384 "
           "stay below 12288, with "
           "block rows of 16 x cols / 768; the block is " +
           to_string(p.block) + ", the matrix " + std::to_string(p.rows) + " x " + std::to_string(p.cols);
  }
  const int least =
      p.dtype == DType::f8e4m3 ? 64 : 32;  // rows of 32 bytes move at a third of the copy engine's rate
  if (std::min(p.block.rows, p.block.cols) < least)
    return "needs blocks of " + std::to_string(least) + " or more on both sides, the block is " +
           to_string(p.block);
  return {};
}

std::string refuse_wgmma_narrow(const Problem& p, const Machine& machine) {
  if (std::string why = refuse_wgmma(p, machine); !why.empty() || p.direction != Direction::dw) return why;
  if (size_of(p.dtype) != 2)
    return std::string("does dw of f16 and bf16 only, the dtype is ") + name_of(p.dtype);
  if (!cuda::sm90_wgmma_sdd_takes(p, machine.cuda.multiprocessors, true))
    return "does dw by items of half the size, which would hold no block of " + to_string(p.block);
  return {};
}

/// Refusals of the Hopper kernels for forward and dX of 16-bit types.
std::string refuse_dds90(const Problem& p, const Machine& machine) {
  if (machine.cuda.sm != 90)
    return "needs a Hopper GPU (compute capability 9.0): its instructions exist nowhere else";
  if (p.direction == Direction::dw) return "does forward and dx only";
  if (size_of(p.dtype) != 2)
    return std::string("multiplies f16 and bf16 only, the dtype is ") + name_of(p.dtype);
  return {};
}

/// Refusals of kernels that merge blocks into units, where a block side is below `least`.
std::string refuse_merging(const Problem& p, std::int32_t least) {
  if (p.strict) return "strict forbids multiplying what x holds under absent blocks";
  if (!cuda::Merging(p.direction, p.rows, p.cols, p.block, least).possible())
    return "keeps a table of a row's blocks in shared memory, which " + std::to_string(p.rows) + " x " +
           std::to_string(p.cols) + " in blocks of " + to_string(p.block) + " do not fit";
  return {};
}

std::string refuse_merged(const Problem& p, const Machine& machine) {
  if (std::string why = refuse_dds90(p, machine); !why.empty()) return why;
  if (std::min(p.block.rows, p.block.cols) >= cuda::Merging::kWgmmaLeast)
    return "merges blocks with a side below 32, the block is " + to_string(p.block);
  return refuse_merging(p, cuda::Merging::kWgmmaLeast);
}

std::string refuse_sm90_mma(const Problem& p, const Machine& machine) {
  if (std::string why = refuse_dds90(p, machine); !why.empty()) return why;
  if (p.block != BlockShape{16, 16}) return "needs blocks of 16x16, the block is " + to_string(p.block);
  const std::int64_t along = ((p.direction == Direction::dx ? p.rows : p.cols) + 15) / 16;
  if (along > cuda::kMmaAlong)
    return "keeps a table of at most " + std::to_string(cuda::kMmaAlong) +
           " places along the reduction, there are " + std::to_string(along);
  return {};
}

std::string refuse_sm90_mma_merged(const Problem& p, const Machine& machine) {
  const int least = std::min(p.block.rows, p.block.cols), most = std::max(p.block.rows, p.block.cols);
  if (least >= cuda::Merging::kMmaLeast || most > cuda::Merging::kMmaLeast)
    return "merges blocks of 8 and 16, with an 8 on one side or both, the block is " + to_string(p.block);
  if (std::string why = refuse_sm90_mma(cuda::merged(p, cuda::Merging::kMmaLeast), machine); !why.empty())
    return why;
  return refuse_merging(p, cuda::Merging::kMmaLeast);
}

std::string refuse_bf16x3(const Problem& p, const Machine& machine) {
  if (machine.cuda.sm != 90)
    return "needs a Hopper GPU (compute capability 9.0): its instructions exist nowhere else";
  if (p.dtype != DType::f32) return std::string("multiplies f32 only, the dtype is ") + name_of(p.dtype);
  if (std::min(p.block.rows, p.block.cols) < 32)
    return "needs blocks of 32 or more on both sides, the block is " + to_string(p.block);
  return {};
}

std::string refuse_bf16x3_narrow(const Problem& p, const Machine& machine) {
  return p.direction == Direction::dw ? "does forward and dx only" : refuse_bf16x3(p, machine);
}

// How wgmma_dds groups block rows: the block rows of a tile, the blocks in a K tile along the reduction, and
// which tiles a thread block takes.
template <cuda::wgmma_dds::TileShape kTile>
plan::BlockRowGroups tile_block_rows(const Problem& p, const Machine& machine) {
  using namespace cuda::wgmma_dds;
  // Two K tiles of 8-bit blocks share a stage and, with promotion, a sum before it is rounded to fp32. The
  // block rows of the tile decide which two, so they keep their order.
  if (p.direction == Direction::dw || (is_scaled(p.dtype) && !p.fast_accum)) return {0, 1};
  const bool dx = p.direction == Direction::dx;
  const bool halves = size_of(p.dtype) == 2 && (dx ? p.block.rows : p.block.cols) == 32 && !narrow_k_tiles(p);
  int step = 1;  // narrow tiles take many rounds
  if constexpr (kTile.outputs > kNarrowTile.outputs) {
    const auto number_of = [](std::int64_t size, int each) {
      return static_cast<unsigned>(std::clamp<std::int64_t>((size + each - 1) / each, 1, 1 << 15));
    };
    const unsigned m_tiles = number_of(p.m, kTile.tokens),
                   groups = number_of(dx ? p.cols : p.rows, kTile.outputs);
    const auto multiprocessors = static_cast<unsigned>(std::max(1, machine.cuda.multiprocessors));
    const auto bytes = static_cast<std::int64_t>(size_of(p.dtype));
    const std::int64_t value_bytes = kTile.value_bytes > 0 ? kTile.value_bytes : bytes;
    const WalkBytes walked{p.blocks * p.block.rows * p.block.cols * value_bytes,
                           p.m * (dx ? p.rows : p.cols) * bytes,
                           static_cast<std::int64_t>(machine.cuda.l2_bytes)};
    if (chunk_of(m_tiles, groups, multiprocessors, walked) == groups)
      step = static_cast<int>(walk_over(m_tiles, groups, multiprocessors).step);
  }
  return {std::max(1, kTile.outputs / (dx ? p.block.cols : p.block.rows)), halves ? 2 : 1, step};
}

template <cuda::wgmma_dds::TileShape kTile>
plan::BlockRowGroups merged_tile_block_rows(const Problem& p, const Machine& machine) {
  const cuda::Merging merging(p.direction, p.rows, p.cols, p.block, cuda::Merging::kWgmmaLeast);
  const bool dx = p.direction == Direction::dx;
  plan::BlockRowGroups groups = tile_block_rows<kTile>(cuda::merged(p, cuda::Merging::kWgmmaLeast), machine);
  groups.fold = dx ? merging.blocks_over() : merging.blocks_down();
  groups.span *= dx ? merging.blocks_down() : merging.blocks_over();
  return groups;
}

constexpr const char* kMmaMergedCaveat =
    "blocks are merged into units of 16 in every call, zeros between, so a NaN in x spreads to the outputs "
    "of the units above it";
constexpr const char* kMergedCaveat =
    "blocks are merged into units of 32 in every call, zeros between, so a NaN in x spreads to the outputs "
    "of the units above it";

template <std::int32_t kLeast>
std::size_t merged_workspace(const Problem& p, const Machine&) {
  return cuda::Merging(p.direction, p.rows, p.cols, p.block, kLeast).workspace_bytes();
}

std::size_t no_workspace(const Problem&, const Machine&) { return 0; }

std::size_t wgmma_workspace_of(const Problem& p, const Machine& machine, bool narrow) {
  return p.direction == Direction::dw
             ? cuda::sm90_wgmma_sdd_workspace(p, machine.cuda.multiprocessors, narrow)
             : cuda::sm90_wgmma_dds_workspace(p);
}
std::size_t wgmma_workspace(const Problem& p, const Machine& machine) {
  return wgmma_workspace_of(p, machine, false);
}
std::size_t wgmma_narrow_workspace(const Problem& p, const Machine& machine) {
  return wgmma_workspace_of(p, machine, true);
}

int run_wgmma(const MatmulArgs& args, bool narrow) {
  return args.direction == Direction::dw ? cuda::sm90_wgmma_sdd(args, narrow)
                                         : cuda::sm90_wgmma_dds(args, narrow);
}

std::size_t mma_workspace(const Problem& p, const Machine& machine) {
  return p.direction == Direction::dw ? cuda::sm80_mma_sdd_workspace(p, machine.cuda.multiprocessors) : 0;
}

}  // namespace

std::span<const Kernel> cuda_kernels() {
  static const Kernel kernels[] = {
      {{"sm90_wgmma", plan::Side::cuda, Isa::generic, refuse_wgmma,
        [](const Problem& p, const Machine& machine) { return cuda::predict_wgmma_us(p, machine); },
        wgmma_workspace, true, false, tile_block_rows<cuda::wgmma_dds::kWideTile>},
       [](const MatmulArgs& args, const Executor&) { return run_wgmma(args, false); },
       true},
      {{"sm90_wgmma_narrow", plan::Side::cuda, Isa::generic, refuse_wgmma_narrow,
        [](const Problem& p, const Machine& machine) { return cuda::predict_wgmma_narrow_us(p, machine); },
        wgmma_narrow_workspace, true, false, tile_block_rows<cuda::wgmma_dds::kNarrowTile>},
       [](const MatmulArgs& args, const Executor&) { return run_wgmma(args, true); },
       true},
      {{"sm90_wgmma_merged", plan::Side::cuda, Isa::generic, refuse_merged,
        [](const Problem& p, const Machine& machine) { return cuda::predict_merged_us(p, machine, false); },
        merged_workspace<cuda::Merging::kWgmmaLeast>, false, false,
        merged_tile_block_rows<cuda::wgmma_dds::kWideTile>, kMergedCaveat},
       [](const MatmulArgs& args, const Executor&) { return cuda::sm90_wgmma_merged(args, false); },
       true},
      {{"sm90_wgmma_merged_narrow", plan::Side::cuda, Isa::generic, refuse_merged,
        [](const Problem& p, const Machine& machine) { return cuda::predict_merged_us(p, machine, true); },
        merged_workspace<cuda::Merging::kWgmmaLeast>, false, false,
        merged_tile_block_rows<cuda::wgmma_dds::kNarrowTile>, kMergedCaveat},
       [](const MatmulArgs& args, const Executor&) { return cuda::sm90_wgmma_merged(args, true); },
       true},
      {{"sm90_mma", plan::Side::cuda, Isa::generic, refuse_sm90_mma,
        [](const Problem& p, const Machine& machine) { return cuda::predict_sm90_mma_us(p, machine); },
        no_workspace},
       [](const MatmulArgs& args, const Executor&) { return cuda::sm90_mma_dds(args); },
       true},
      {{"sm90_mma_merged", plan::Side::cuda, Isa::generic, refuse_sm90_mma_merged,
        [](const Problem& p, const Machine& machine) { return cuda::predict_sm90_mma_merged_us(p, machine); },
        merged_workspace<cuda::Merging::kMmaLeast>, false, false, nullptr, kMmaMergedCaveat},
       [](const MatmulArgs& args, const Executor&) { return cuda::sm90_mma_merged(args); },
       true},
      {{"sm80_mma", plan::Side::cuda, Isa::generic, refuse_mma,
        [](const Problem& p, const Machine& machine) { return cuda::predict_mma_us(p, machine); },
        mma_workspace},
       [](const MatmulArgs& args, const Executor&) {
         return args.direction == Direction::dw ? cuda::sm80_mma_sdd(args) : cuda::sm80_mma_dds(args);
       }},
      {{"sm80_ffma", plan::Side::cuda, Isa::generic, refuse_ffma,
        [](const Problem& p, const Machine& machine) { return cuda::predict_ffma_us(p, machine); },
        [](const Problem& p, const Machine& machine) {
          return p.direction == Direction::dw ? cuda::sm80_ffma_sdd_workspace(p, machine.cuda.multiprocessors)
                                              : 0;
        },
        true},
       [](const MatmulArgs& args, const Executor&) {
         if (args.dtype == DType::f8e4m3) return cuda::sm80_f8_dds(args);
         return args.direction == Direction::dw ? cuda::sm80_ffma_sdd(args) : cuda::sm80_ffma_dds(args);
       }},
      {{"sm90_split", plan::Side::cuda, Isa::generic, refuse_bf16x3,
        [](const Problem& p, const Machine& machine) { return cuda::predict_bf16x3_us(p, machine, false); },
        [](const Problem& p, const Machine& machine) {
          return p.direction == Direction::dw
                     ? cuda::sm90_bf16x3_sdd_workspace(p, machine.cuda.multiprocessors)
                     : cuda::sm90_bf16x3_workspace(p);
        },
        false, false, tile_block_rows<cuda::wgmma_dds::kBf16x3Tile>},
       [](const MatmulArgs& args, const Executor&) {
         return args.direction == Direction::dw ? cuda::sm90_bf16x3_sdd(args)
                                                : cuda::sm90_bf16x3_dds(args, false);
       }},
      {{"sm90_split_narrow", plan::Side::cuda, Isa::generic, refuse_bf16x3_narrow,
        [](const Problem& p, const Machine& machine) { return cuda::predict_bf16x3_us(p, machine, true); },
        [](const Problem& p, const Machine&) { return cuda::sm90_bf16x3_workspace(p); }, false, false,
        tile_block_rows<cuda::wgmma_dds::kNarrowBf16x3Tile>},
       [](const MatmulArgs& args, const Executor&) { return cuda::sm90_bf16x3_dds(args, true); }},
      {{"sm80_decode", plan::Side::cuda, Isa::generic, refuse_decode,
        [](const Problem& p, const Machine& machine) { return cuda::predict_decode_us(p, machine); },
        no_workspace},
       [](const MatmulArgs& args, const Executor&) { return cuda::sm80_decode(args); }},
      {{"sm80_decode_staged", plan::Side::cuda, Isa::generic, refuse_decode_staged,
        [](const Problem& p, const Machine& machine) { return cuda::predict_decode_staged_us(p, machine); },
        no_workspace},
       [](const MatmulArgs& args, const Executor&) { return cuda::sm80_decode_staged(args); }},
      {{"sm90_decode", plan::Side::cuda, Isa::generic, refuse_hopper_decode,
        [](const Problem& p, const Machine& machine) { return cuda::predict_hopper_decode_us(p, machine); },
        no_workspace},
       [](const MatmulArgs& args, const Executor&) { return cuda::sm90_decode(args); }},
      {{"sm90_decode_lines", plan::Side::cuda, Isa::generic, refuse_decode_block_rows,
        [](const Problem& p, const Machine& machine) {
          return cuda::predict_decode_block_rows_us(p, machine);
        },
        no_workspace},
       [](const MatmulArgs& args, const Executor&) { return cuda::sm90_decode_lines(args); }},
  };
  return kernels;
}

#else

std::span<const Kernel> cuda_kernels() { return {}; }

#endif

}  // namespace sparseloom::kernels
