// Host side of the CUDA room. Plain C++: no CUDA header, so that whoever calls needs none. All functions are
// asynchronous, return 0 or a cudaError_t, allocate nothing, never wait, and may be captured in a CUDA graph.
// args.device is the thread's current device.
#pragma once

#include <cstddef>

#include "kernels/args.h"
#include "sparseloom/layout.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom::kernels::cuda {

/// Forward and dX on tensor cores: bf16, f16, and f32 with args.tf32. Any m >= 1, block, alignment.
int sm80_mma_dds(const MatmulArgs& args) noexcept;

/// Forward and dX on Hopper's wgmma and TMA (compute capability 9.0 alone): bf16, f16 and f32 with args.tf32
/// in block sides 32, 64, 128 in any pairing; forward of f8e4m3 in sides 64 and 128; any m >= 1. Operands
/// that TMA cannot address (bases or rows not in multiples of 16 bytes, no block stored) go to sm80_mma_dds
/// or sm80_f8_dds. narrow: tiles of a quarter of the outputs, for products that have too few of the others.
/// Scratch: for dX of f32, which transposes the values.
int sm90_wgmma_dds(const MatmulArgs& args, bool narrow) noexcept;
std::size_t sm90_wgmma_dds_workspace(const Problem& problem) noexcept;

/// The same for bf16 and f16 blocks with a side below 32, which it first merges into units of 32 on that
/// side, zeros between (merge_blocks.h): what x holds under those zeros is multiplied. What it cannot address
/// goes to sm80_mma_dds. Scratch: the units, as large as W whole.
int sm90_wgmma_merged(const MatmulArgs& args, bool narrow) noexcept;

/// Forward and dX of bf16 and f16 in blocks of 16 x 16 on Hopper (compute capability 9.0 alone): mma.sync for
/// 512 outputs at a time, fed by TMA; any m >= 1, at most kPanelAlong block columns (dX: rows), of which a
/// table takes 24 KB of shared memory. What TMA cannot address goes to sm80_mma_dds.
inline constexpr int kPanelAlong = 1024;
int sm90_mma_dds(const MatmulArgs& args) noexcept;

/// The same for blocks of 8 on one side or both and 16 on the other, which it first merges into units of 16 x
/// 16, zeros between. Scratch: the units, as large as W whole.
int sm90_mma_merged(const MatmulArgs& args) noexcept;

/// Forward and dX of f32 on Hopper's tensor cores without rounding the operands: each is three bf16, six
/// products of which are added (wgmma_dds_split.cuh). Block sides 32, 64, 128; any m >= 1. What TMA cannot
/// address goes to sm80_ffma_dds. Scratch: the values' parts. narrow: tiles of half the outputs.
int sm90_split_dds(const MatmulArgs& args, bool narrow) noexcept;
std::size_t sm90_split_workspace(const Problem& problem) noexcept;

/// Forward of f8e4m3 by FFMA: any m >= 1, block, alignment.
int sm80_f8_dds(const MatmulArgs& args) noexcept;

/// dW on Hopper's wgmma and TMA, as sm90_wgmma_dds; of bf16 and f16 also blocks of 16 on either or both sides
/// beside 16 and 32, block rows of 16 by mma.sync. What TMA cannot address goes to sm80_mma_sdd. Scratch:
/// partial sums where the tokens are cut, of either kernel; of f32 both operands, turned over. narrow: bf16
/// and f16 by smaller items.
int sm90_wgmma_sdd(const MatmulArgs& args, bool narrow) noexcept;
std::size_t sm90_wgmma_sdd_workspace(const Problem& problem, int multiprocessors, bool narrow) noexcept;
/// Whether these sides, and for narrow ones this many blocks of rows, are taken.
bool sm90_wgmma_sdd_takes(const Problem& problem, int multiprocessors, bool narrow) noexcept;

/// dW of f32 as sm90_split_dds. Any alignment, m >= 0. Scratch: both operands' parts, half again their size,
/// and partial sums.
int sm90_split_sdd(const MatmulArgs& args) noexcept;
std::size_t sm90_split_sdd_workspace(const Problem& problem, int multiprocessors) noexcept;

/// dW on tensor cores: bf16, f16, and f32 with args.tf32. Scratch: partial sums when the tokens are cut into
/// pieces.
int sm80_mma_sdd(const MatmulArgs& args) noexcept;
std::size_t sm80_mma_sdd_workspace(const Problem& problem, int multiprocessors) noexcept;

/// Forward and dX, and dW, in fp32 by FFMA: operands are not rounded.
int sm80_ffma_dds(const MatmulArgs& args) noexcept;
int sm80_ffma_sdd(const MatmulArgs& args) noexcept;
std::size_t sm80_ffma_sdd_workspace(const Problem& problem, int multiprocessors) noexcept;

/// Forward and dX of few tokens, bound by the bytes of the stored blocks: m <= kDecodeTokens; bf16, f16, f32
/// (args.tf32 or not).
inline constexpr int kDecodeTokens = 64;
int sm80_decode(const MatmulArgs& args) noexcept;

/// The same for many narrow blocks: forward, bf16 and f16, block sides of at most kStagedBlock. X goes
/// through shared memory.
inline constexpr int kStagedBlock = 16;
int sm80_decode_staged(const MatmulArgs& args) noexcept;

/// Forward of few tokens on Hopper (compute capability 9.0 alone), cut evenly by stored blocks: bf16 and f16,
/// at most kHopperDecodeRows block rows. Blocks of 32, 64 and 128 in any pairing, m <= kDecodeTokens, columns
/// a multiple of 8; or blocks of 16 x 16, m <= kResidentTokens, an eighth of the columns of 32 tokens within
/// kResidentBytes of shared memory. What the copy engine cannot address goes to an sm_80 kernel.
inline constexpr int kHopperDecodeRows = 8192;
inline constexpr int kResidentTokens = 256;
inline constexpr int kResidentBytes = 96 * 1024;
int sm90_decode(const MatmulArgs& args) noexcept;

/// The same, cut by lines of 32 outputs of a block row (blocks of 16 x 16: of 16): any number of rows,
/// columns a multiple of 8, m <= kDecodeTokens (kNarrowLineTokens). Where args.uneven_lines, sm90_decode
/// takes the call. Many blocks of 16 x 16 for more than 16 tokens: X passes through shared memory
/// (decode_passing.h).
inline constexpr int kNarrowLineTokens = 32;
int sm90_decode_lines(const MatmulArgs& args) noexcept;

/// dense <- values at their places, zero elsewhere: the device twin of sparseloom::unpack. `stream`: a
/// cudaStream_t.
int sm80_bsr_unpack(const IndexView& index, const void* values, const MatrixView& dense,
                    void* stream) noexcept;

/// values <- the blocks of dense that the index names, padding zero: the device twin of sparseloom::pack.
int sm80_bsr_pack(const ConstMatrixView& dense, const IndexView& index, void* values, void* stream) noexcept;
/// values += those blocks; dense and values f32.
int sm80_bsr_add(const ConstMatrixView& dense, const IndexView& index, void* values, void* stream) noexcept;

/// sparseloom::set_topology on the device, one launch. workspace: sm80_set_topology_workspace bytes; none
/// when the grid's bits fit into `shared_bytes`, the device's most per thread block. Grids of fewer than 2^28
/// cells.
std::size_t sm80_set_topology_workspace(std::int64_t block_rows, std::int64_t block_cols,
                                        std::size_t shared_bytes) noexcept;
int sm80_set_topology(const std::uint8_t* mask, const TopologyTables& tables, std::byte* workspace,
                      int device, void* stream) noexcept;

/// values[slot] <- values[source[slot]], zero where source names no block; a block is block_bytes long.
/// workspace: as long as values.
int sm80_move_blocks(void* values, const std::int32_t* source, std::int64_t blocks, std::int64_t block_bytes,
                     std::byte* workspace, void* stream) noexcept;

/// y <- activation(z) + residual, all of one shape and dtype, for what no epilogue could fuse. z may be y; a
/// residual without memory is none.
int sm80_activate(const ConstMatrixView& z, Activation activation, const ConstMatrixView& residual,
                  const MatrixView& y, void* stream) noexcept;

/// dz <- dy act'(saved) and dbias <- its column sums, in one pass over the matrices (and one over the few
/// sums): f32, f16, bf16.
struct ActivationGradientArgs {
  Activation activation = Activation::none;  // none: dz is dy, and only dbias can be asked for
  ConstMatrixView dy;
  ConstMatrixView saved;  // as dy; relu: its output, the others: the pre-activation
  MatrixView dz;          // as dy; data null: not wanted
  void* dbias = nullptr;  // [cols] of dy's dtype, summed in fp32 before dz is rounded; null: not wanted
  std::byte* workspace = nullptr;
  int device = 0, multiprocessors = 1;
  void* stream = nullptr;
};
int sm80_activation_gradient(const ActivationGradientArgs& args) noexcept;
/// For dbias; without it none is needed.
std::size_t sm80_activation_gradient_workspace(std::int64_t rows, std::int64_t cols, DType dtype,
                                               int multiprocessors) noexcept;

}  // namespace sparseloom::kernels::cuda
