// The sparsifiers of sparsifiers.h on the executor's device, with memory that the caller lends.
#pragma once

#include <cstddef>
#include <span>

#include "sparseloom/executor.h"
#include "sparseloom/export.h"
#include "sparseloom/matrix_view.h"
#include "sparseloom/sparsifiers.h"

namespace sparseloom {

/// Bytes of workspace of sparsify: none on the CPU, where it allocates its scratch itself. On a CUDA device
/// none for streaming and blocking selections; scalar_fraction needs 256 KiB, 8 bytes for each 2048 elements,
/// and for f32 and f64 a list of as many candidates as elements stay, of 4096 at least and 2^19 at most, with
/// 8 bytes beside each value; blockwise_fraction the same for its blocks, whose scores are f32, and 5 bytes
/// for each block. Throws Error like sparsify.
SPARSELOOM_API std::size_t sparsify_workspace(const ConstMatrixView& dense, const SparsifierSpec& spec,
                                              const Executor& executor);

/// Writes which elements of `dense` stay, like the sparsify of sparsifiers.h. Matrix, result and workspace,
/// which is aligned to 16 bytes, lie on the executor's device and do not overlap. On CUDA the work is queued
/// on the stream, and nothing waits.
///
/// On CUDA the same elements stay, except for blocks: each thread of a group adds every n-th element of a
/// block in fp64, and the threads' sums are added pairwise, in the same order every time. The CPU adds them
/// in the order of rows, so that sums that are not exact in fp64 may round to another fp32 number.
///
/// On CUDA, streaming selections read the matrix once; keep_all and random_fraction do not read it if only
/// the mask is requested. per_block_nm reads it once, but groups of more than 32 KiB once for each 8 bits of
/// a dtype's magnitude and once more. scalar_fraction reads it twice; if more elements than the list can hold
/// have the leading 15 bits of the last one that stays, f32 up to two times more and f64 up to four.
/// blockwise_fraction reads it once to score, and once more for values.
///
/// Throws Error like that sparsify, for a workspace that does not fit, and on CUDA for groups of 2^31
/// elements.
SPARSELOOM_API void sparsify(const ConstMatrixView& dense, const SparsifierSpec& spec,
                             const SparsifierResult& result, std::span<std::byte> workspace,
                             const Executor& executor);

}  // namespace sparseloom
