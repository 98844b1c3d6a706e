// n:m and n:m:g weights (nm.h, nmg.h): the choice of the stored elements, and copies between dense and packed
// weights. All of them work on the CPU and throw Error for sizes that differ, null arrays, and invalid views.
#pragma once

#include <cstdint>
#include <memory_resource>

#include "sparseloom/executor.h"
#include "sparseloom/export.h"
#include "sparseloom/matrix_view.h"
#include "sparseloom/nm.h"
#include "sparseloom/nmg.h"

namespace sparseloom {

/// Nm::validate and Nmg::validate, unless the calling thread has validated this index lately: it recognises
/// indices by their addresses, sizes and a fingerprint of their whole content.
SPARSELOOM_API void nm_require_valid(const char* op, const NmView& w);
SPARSELOOM_API void nmg_require_valid(const char* op, const NmgView& w);

/// Fills positions [rows, groups, n] from mask [rows, cols], whose true elements are stored. A group with
/// fewer than n stores elements at its lowest free positions too. Throws Error that names the first group
/// with more than n.
SPARSELOOM_API void nm_positions(const bool* mask, const NmView& shape, std::uint8_t* positions,
                                 const Executor& executor);

/// values <- the stored elements of `dense` [rows, cols], zero beyond cols. Copies bytes.
SPARSELOOM_API void nm_pack(const ConstMatrixView& dense, const NmView& w, void* values,
                            const Executor& executor);

/// dense <- values at their positions, zero elsewhere.
SPARSELOOM_API void nm_unpack(const NmView& w, const void* values, const MatrixView& dense,
                              const Executor& executor);

/// Fills order [chunks, strips, chunk rows] so that the stored elements have large magnitudes: of all outputs
/// of a chunk and all patterns, the pair with the largest sum comes first, and each pattern gets g outputs.
/// Equal sums go to the lowest output, then to the first pattern; NaN counts as Inf. dense is f32, f16, bf16
/// or f64. `scratch` gives the memory that is needed besides the result: 16 bytes for each output of a chunk
/// and 2 for each pattern, for every thread.
SPARSELOOM_API void nmg_order(const ConstMatrixView& dense, const NmgView& shape, std::int16_t* order,
                              const Executor& executor,
                              std::pmr::memory_resource* scratch = std::pmr::get_default_resource());

/// values <- the stored elements of `dense` [rows, cols], zero outside of it. Copies bytes.
SPARSELOOM_API void nmg_pack(const ConstMatrixView& dense, const NmgView& w, void* values,
                             const Executor& executor);

/// dense <- values at their positions, zero elsewhere.
SPARSELOOM_API void nmg_unpack(const NmgView& w, const void* values, const MatrixView& dense,
                               const Executor& executor);

}  // namespace sparseloom
