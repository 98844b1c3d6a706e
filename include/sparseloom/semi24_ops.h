// Copies to and from 2:4 (semi24.h), and the prunings that make a weight 2:4.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sparseloom/dtype.h"
#include "sparseloom/executor.h"
#include "sparseloom/export.h"
#include "sparseloom/matrix_view.h"
#include "sparseloom/semi24.h"
#include "sparseloom/semi24_pruning.h"

namespace sparseloom {

/// values and positions <- a weight with at most two nonzeros in each group. -0 counts as zero, NaN as a
/// nonzero. Every stored element is copied bit by bit, so unpack restores the weight except for the sign of
/// zeros that are not stored. Throws Error naming row, group and number of nonzeros of the first group that
/// has more than two. dense has any dtype and lies on the CPU; the executor lends threads.
SPARSELOOM_API void semi24_pack(const ConstMatrixView& dense, void* values, std::uint8_t* positions,
                                const Executor& executor);

/// dense <- the values at their positions, zero elsewhere. On a CUDA device, which must have all operands, it
/// queues one kernel on the executor's stream, which does not check the positions; on the CPU it throws Error
/// if they are not valid.
SPARSELOOM_API void semi24_unpack(const Semi24View& w, const void* values, const MatrixView& dense,
                                  const Executor& executor);

/// Semi24::validate of positions in host memory, unless `writes` is not null and the calling thread has
/// lately validated positions of this shape there after as many writes. A position never leaves its group, so
/// that no access to memory depends on it.
SPARSELOOM_API void semi24_require_valid(const char* op, const Semi24View& w,
                                         const std::uint64_t* writes = nullptr);

/// mask [w.rows, w.cols], row-major <- whether the pruning keeps the element. A tile or group at the border
/// is completed by zeros, none of which is kept. w is f32, f16, bf16 or f64 and lies on the CPU. The result
/// does not depend on the number of threads. Throws Error for other dtypes.
SPARSELOOM_API void semi24_prune(const ConstMatrixView& w, Semi24Pruning pruning, bool* mask,
                                 const Executor& executor);

/// Prunes and packs at once: out <- the result of semi24_pack for the elements of w that the pruning keeps (a
/// NaN or Inf that is not kept has no effect), the mask of the kept elements, and the same for W^T, which
/// requires a transposable pruning. On a CUDA device it is one kernel that reads w once, of f32, f16 or bf16,
/// and queues on the executor's stream; on the CPU w may be f64 too. The bits are the same everywhere. Throws
/// Error for other dtypes, if memory for a result is missing, and if W^T is requested and the pruning is not
/// transposable.
SPARSELOOM_API void semi24_compress(const ConstMatrixView& w, Semi24Pruning pruning,
                                    const Semi24Compressed& out, const Executor& executor);

/// Bytes of semi24_order's result: a bit for each element of the weight, and at most a border of 63 rows and
/// 127 columns, or 255 if the dtype has 8 bits. Throws Error for sizes outside of 0 to 2^31 - 1.
SPARSELOOM_API std::int64_t semi24_metadata_bytes(std::int64_t rows, std::int64_t cols, DType dtype);

/// metadata <- the positions in the order in which tensor cores read them beside values of this dtype, for
/// Semi24View::metadata: one order for 8 bits, another one for the other dtypes. It is made once when a
/// weight moves to a CUDA device; it is never stored, since the positions have the same content. Both lie on
/// the executor's device, metadata aligned to 16 bytes. Throws Error without a CUDA device.
SPARSELOOM_API void semi24_order(const Semi24View& w, DType dtype, std::byte* metadata,
                                 const Executor& executor);

}  // namespace sparseloom
