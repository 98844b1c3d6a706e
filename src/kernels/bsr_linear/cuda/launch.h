// Host functions of the CUDA kernels, in plain C++ without CUDA headers, so that callers need none. All are
// asynchronous, return 0 or a cudaError_t, allocate nothing, never wait, and may be captured in a CUDA graph.
// args.device must be the thread's current device.
#pragma once

#include <cstddef>

#include "kernels/args.h"
#include "sparseloom/layout.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom::kernels::cuda {

/// Forward and dX on tensor cores: bf16, f16, and f32 with args.tf32. Takes any m >= 1, block and alignment.
int sm80_mma_dds(const MatmulArgs& args) noexcept;

/// Forward and dX by Hopper's wgmma and TMA (compute capability 9.0 only): bf16, f16 and f32 with args.tf32
/// in block sides 32, 64, 128 in any pairing; forward of f8e4m3 in sides 64 and 128; any m >= 1. If TMA
/// cannot address an operand (a base or row is not a multiple of 16 bytes, or no block is stored),
/// sm80_mma_dds or sm80_f8_dds is the fallback. narrow: uses tiles with a quarter of the outputs, for
/// products that have too few of the wide ones. The workspace serves dX of f32, which transposes the values.
int sm90_wgmma_dds(const MatmulArgs& args, bool narrow) noexcept;
std::size_t sm90_wgmma_dds_workspace(const Problem& problem) noexcept;

/// The same for bf16 and f16 blocks with a side below 32. It first merges them into units of 32 on that side
/// with zeros in between (merge_blocks.h), so what x holds under those zeros is multiplied. Fallback:
/// sm80_mma_dds. The workspace holds the units and may be as large as the whole W.
int sm90_wgmma_merged(const MatmulArgs& args, bool narrow) noexcept;

/// Forward and dX of bf16 and f16 in blocks of 16 x 16 on Hopper (compute capability 9.0 only), by mma.sync
/// for 512 outputs at a time, fed by TMA. Takes any m >= 1 and at most kMmaAlong block columns (dX: block
/// rows), for which a table takes 24 KB of shared memory. Fallback: sm80_mma_dds.
inline constexpr int kMmaAlong = 1024;
int sm90_mma_dds(const MatmulArgs& args) noexcept;

/// The same for blocks of 8 on one side or both and 16 on the other. It first merges them into units of 16 x
/// 16 with zeros in between. The workspace holds the units and may be as large as the whole W.
int sm90_mma_merged(const MatmulArgs& args) noexcept;

/// Forward and dX of f32 on Hopper's tensor cores without rounding the operands (bf16x3): each operand is
/// split into three bf16, of whose products six are added (fp32_bf16x3/kernel.cuh). Takes block sides 32, 64,
/// 128 and any m >= 1. Fallback: sm80_ffma_dds. The workspace holds the bf16 parts of the values. narrow:
/// uses tiles of half the outputs.
int sm90_bf16x3_dds(const MatmulArgs& args, bool narrow) noexcept;
std::size_t sm90_bf16x3_workspace(const Problem& problem) noexcept;

/// Forward of f8e4m3 by FFMA. Takes any m >= 1, block and alignment.
int sm80_f8_dds(const MatmulArgs& args) noexcept;

/// dW by Hopper's wgmma and TMA, for the types and sides of sm90_wgmma_dds; with bf16 and f16 also for blocks
/// of 16 on either or both sides, paired with 16 and 32, where mma.sync multiplies block rows of 16.
/// Fallback: sm80_mma_sdd. The workspace of either kernel holds partial sums if the tokens are cut, and for
/// f32 both operands, transposed. narrow: uses smaller work items, for bf16 and f16.
int sm90_wgmma_sdd(const MatmulArgs& args, bool narrow) noexcept;
std::size_t sm90_wgmma_sdd_workspace(const Problem& problem, int multiprocessors, bool narrow) noexcept;
/// Whether these block sides are taken, and with blocks of 16 this many block rows.
bool sm90_wgmma_sdd_takes(const Problem& problem, int multiprocessors, bool narrow) noexcept;

/// dW of f32 by bf16x3, as in sm90_bf16x3_dds. Takes any alignment and m >= 0. The workspace holds the bf16
/// parts of both operands, 1.5 times their size, and partial sums.
int sm90_bf16x3_sdd(const MatmulArgs& args) noexcept;
std::size_t sm90_bf16x3_sdd_workspace(const Problem& problem, int multiprocessors) noexcept;

/// dW on tensor cores: bf16, f16, and f32 with args.tf32. The workspace holds partial sums if the tokens are
/// cut.
int sm80_mma_sdd(const MatmulArgs& args) noexcept;
std::size_t sm80_mma_sdd_workspace(const Problem& problem, int multiprocessors) noexcept;

/// Forward and dX, and dW, in fp32 by FFMA, which does not round the operands.
int sm80_ffma_dds(const MatmulArgs& args) noexcept;
int sm80_ffma_sdd(const MatmulArgs& args) noexcept;
std::size_t sm80_ffma_sdd_workspace(const Problem& problem, int multiprocessors) noexcept;

/// Forward and dX of small batches, limited by the bytes of the stored blocks: m <= kDecodeTokens; bf16, f16,
/// and f32 with or without args.tf32.
inline constexpr int kDecodeTokens = 64;
int sm80_decode(const MatmulArgs& args) noexcept;

/// The same for many narrow blocks: forward of bf16 and f16 with block sides of at most kStagedBlock. X goes
/// through shared memory.
inline constexpr int kStagedBlock = 16;
int sm80_decode_staged(const MatmulArgs& args) noexcept;

/// Forward of small batches on Hopper (compute capability 9.0 only), with the stored blocks divided evenly:
/// bf16 and f16, at most kHopperDecodeRows block rows. Takes blocks of 32, 64 and 128 in any pairing with m
/// <= kDecodeTokens and a multiple of 8 columns; or blocks of 16 x 16 with m <= kXInSharedTokens, if an
/// eighth of the columns of 32 tokens fits into kXInSharedBytes of shared memory. What the copy engine cannot
/// address goes to an sm_80 kernel.
inline constexpr int kHopperDecodeRows = 8192;
inline constexpr int kXInSharedTokens = 256;
inline constexpr int kXInSharedBytes = 96 * 1024;
int sm90_decode(const MatmulArgs& args) noexcept;

/// The same with a group of warps for each strip of 32 outputs of a block row (blocks of 16 x 16: for each
/// block row). Takes any number of rows, a multiple of 8 columns, and m <= kDecodeTokens (16 x 16:
/// kNarrowBlockRowTokens). A long block row keeps its warps busy when the others are done: for uneven ones
/// there is sm90_decode. For many blocks of 16 x 16 and more than 16 tokens it streams X through shared
/// memory (decode_x_streamed/entry.h).
inline constexpr int kNarrowBlockRowTokens = 32;
int sm90_decode_lines(const MatmulArgs& args) noexcept;

/// dense <- values at their places, zero elsewhere: the device version of sparseloom::unpack. `stream` is a
/// cudaStream_t.
int sm80_bsr_unpack(const IndexView& index, const void* values, const MatrixView& dense,
                    void* stream) noexcept;

/// values <- the blocks of dense that the index names, with zeros as padding: the device version of
/// sparseloom::pack.
int sm80_bsr_pack(const ConstMatrixView& dense, const IndexView& index, void* values, void* stream) noexcept;
/// values += those blocks. dense and values must be f32.
int sm80_bsr_add(const ConstMatrixView& dense, const IndexView& index, void* values, void* stream) noexcept;

/// sparseloom::set_topology on the device, in one launch, for grids of fewer than 2^28 cells. workspace:
/// sm80_set_topology_workspace bytes, which is 0 if the grid's bits fit into `shared_bytes`, the most that
/// the device has per thread block.
std::size_t sm80_set_topology_workspace(std::int64_t block_rows, std::int64_t block_cols,
                                        std::size_t shared_bytes) noexcept;
int sm80_set_topology(const std::uint8_t* mask, const TopologyTables& tables, std::byte* workspace,
                      int device, void* stream) noexcept;

/// values[slot] <- values[source[slot]], or zero if source names no block. A block is block_bytes long.
/// workspace: as long as values.
int sm80_move_blocks(void* values, const std::int32_t* source, std::int64_t blocks, std::int64_t block_bytes,
                     std::byte* workspace, void* stream) noexcept;

/// y <- activation(z) + residual, all of one shape and dtype, for products whose kernel could not fuse it. z
/// may be y; a residual without memory is not added.
int sm80_activate(const ConstMatrixView& z, Activation activation, const ConstMatrixView& residual,
                  const MatrixView& y, void* stream) noexcept;

/// dz <- dy act'(saved) and dbias <- its column sums, in one pass over the matrices (and one over the few
/// partial sums). Takes f32, f16 and bf16.
struct ActivationGradientArgs {
  Activation activation = Activation::none;  // with `none`, dz is dy and only dbias can be asked for
  ConstMatrixView dy;
  ConstMatrixView saved;  // same shape as dy; the output for relu, the pre-activation for the others
  MatrixView dz;          // same shape as dy; null data if not wanted
  void* dbias = nullptr;  // [cols] of dy's dtype, summed in fp32 before dz is rounded; null if not wanted
  std::byte* workspace = nullptr;
  int device = 0, multiprocessors = 1;
  void* stream = nullptr;
};
int sm80_activation_gradient(const ActivationGradientArgs& args) noexcept;
/// Bytes that dbias needs; without dbias no workspace is needed.
std::size_t sm80_activation_gradient_workspace(std::int64_t rows, std::int64_t cols, DType dtype,
                                               int multiprocessors) noexcept;

}  // namespace sparseloom::kernels::cuda
