// Host side of the CUDA room. Plain C++: no CUDA header, so that whoever calls needs none. All functions are asynchronous, return 0
// or a cudaError_t, allocate nothing, never wait, and may be captured in a CUDA graph. args.device is the thread's current device.
#pragma once

#include <cstddef>

#include "kernels/args.h"
#include "sparseloom/layout.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom::kernels::cuda {

/// Forward and dX on tensor cores: bf16, f16, and f32 with args.tf32. Any m >= 1, block, alignment.
int sm80_mma_dds(const MatmulArgs& args) noexcept;

/// Forward and dX on Hopper's wgmma and TMA (compute capability 9.0 alone): bf16 and f16, block sides 32, 64, 128 in any pairing,
/// any m >= 1. Operands that TMA cannot address (bases or rows not in multiples of 16 bytes, no block stored) go to sm80_mma_dds.
int sm90_wgmma_dds(const MatmulArgs& args) noexcept;

/// dW on Hopper's wgmma and TMA, as sm90_wgmma_dds; what TMA cannot address goes to sm80_mma_sdd with its workspace.
int sm90_wgmma_sdd(const MatmulArgs& args) noexcept;

/// dW on tensor cores: bf16, f16, and f32 with args.tf32. Scratch: partial sums when the tokens are cut into pieces.
int sm80_mma_sdd(const MatmulArgs& args) noexcept;
std::size_t sm80_mma_sdd_workspace(const Problem& problem, int multiprocessors) noexcept;

/// Forward and dX, and dW, in fp32 by FFMA: operands are not rounded.
int sm80_ffma_dds(const MatmulArgs& args) noexcept;
int sm80_ffma_sdd(const MatmulArgs& args) noexcept;
std::size_t sm80_ffma_sdd_workspace(const Problem& problem, int multiprocessors) noexcept;

/// Forward and dX of few tokens, bound by the bytes of the stored blocks: m <= kDecodeTokens; bf16, f16, f32 (args.tf32 or not).
inline constexpr int kDecodeTokens = 64;
int sm80_decode(const MatmulArgs& args) noexcept;

/// The same for many narrow blocks: forward, bf16 and f16, block sides of at most kStagedBlock. X goes through shared memory.
inline constexpr int kStagedBlock = 16;
int sm80_decode_staged(const MatmulArgs& args) noexcept;

/// dense <- values at their places, zero elsewhere: the device twin of sparseloom::unpack. `stream`: a cudaStream_t.
int sm80_bsr_unpack(const IndexView& index, const void* values, const MatrixView& dense, void* stream) noexcept;

/// values <- the blocks of dense that the index names, padding zero: the device twin of sparseloom::pack.
int sm80_bsr_pack(const ConstMatrixView& dense, const IndexView& index, void* values, void* stream) noexcept;

/// y <- activation(y), in place, for what no epilogue could fuse.
int sm80_activate(const MatrixView& y, Activation activation, void* stream) noexcept;

}  // namespace sparseloom::kernels::cuda
