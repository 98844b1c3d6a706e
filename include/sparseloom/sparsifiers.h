// Sparsifiers: which single elements of a dense matrix stay. They differ in how much must be read before it
// is known whether an element stays (STen, Ivanov et al. 2023, arXiv 2304.07613):
//
//   kind           decides by           reads of the matrix  memory beside the result
//   streaming      the element          1                    O(1)
//   blocking       its block            2                    O(elements of a block)
//   materialising  all elements         2                    O(elements that stay)
//
// This holds for the CPU; sparsifier_ops.h has the differences on a GPU.
//
// Magnitudes are compared and the sign never decides. NaN counts as Inf. Of equal magnitudes the element with
// the lowest index in row-major order stays. Results do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <memory_resource>

#include "sparseloom/executor.h"
#include "sparseloom/export.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom {

enum class Selection : std::uint8_t {
  keep_all,            // streaming
  random_fraction,     // streaming: each element is removed with probability `amount`
  scalar_threshold,    // streaming: |x| > `amount` stays
  scalar_fraction,     // materialising: the smallest round(`amount` * n) of n elements are removed
  blockwise_fraction,  // materialising: the blocks [rows, cols] with the smallest sum of magnitudes are
                       // removed
  per_block_nm,        // blocking: the n largest of each m consecutive elements of a row stay
};

/// The parameters of a selection; each reads its own fields.
struct SparsifierSpec {
  Selection selection = Selection::keep_all;
  double amount = 0;                            // a fraction in [0, 1] to remove, or a threshold >= 0
  std::int64_t block_rows = 1, block_cols = 1;  // of blockwise_fraction
  std::int64_t n = 1, m = 1;                    // of per_block_nm
  std::uint64_t seed = 0;                       // of random_fraction: the same seed removes the same elements
};

/// The results of sparsify: a byte for each element, row-major, and the values with zero where nothing stays.
/// Either may be null; with neither, nothing happens.
struct SparsifierResult {
  bool* mask = nullptr;    // [rows, cols]
  void* values = nullptr;  // [rows, cols] of the dtype of `dense`
};

/// Writes which elements of `dense` (f32, f16, bf16 or f64) stay. `scratch` gives all memory that is needed
/// besides the result, and must be safe to call from several threads. Throws Error for another dtype, a
/// fraction outside [0, 1], a threshold that is negative or NaN, a block side below 1, or n and m without 1
/// <= n <= m; on a CUDA device, for which sparsifier_ops.h has another sparsify.
SPARSELOOM_API void sparsify(const ConstMatrixView& dense, const SparsifierSpec& spec,
                             const SparsifierResult& result, const Executor& executor,
                             std::pmr::memory_resource* scratch = std::pmr::get_default_resource());

/// The elements and bytes of dense matrices that sparsifiers have read in this process so far. The kernels of
/// a GPU count in its memory: wait for their work first, and do not call this while a graph is captured.
struct SparsifierReads {
  std::int64_t elements = 0;
  std::int64_t bytes = 0;
};
SPARSELOOM_API SparsifierReads sparsifier_reads() noexcept;

}  // namespace sparseloom
