// The inner loops of one-shot pruning, which chooses the elements of a trained weight by the Gram matrix
// H = X^T X of its inputs: removing the elements e of a row adds e H e^T to the squared error of its output.
#pragma once

#include <cstdint>

#include "sparseloom/executor.h"
#include "sparseloom/export.h"

namespace sparseloom {

/// The most columns of one column_sweep, and the longest group of its n:m choice.
inline constexpr std::int64_t kSweepColumns = 128, kSweepGroup = 32;

/// What a sweep rounds the elements that stay to: int8 of -127 .. 127, or float8 e4m3 of at most 448, each
/// times a factor of the row.
enum class SweepGrid : std::uint8_t { none, int8, e4m3 };

/// Some consecutive columns of a weight that are pruned one after the other (SparseGPT, Frantar and Alistarh
/// 2023, arXiv 2301.00774). All memory lies on the executor's device.
struct ColumnSweep {
  std::int64_t rows = 0, cols = 0;  // at most kSweepColumns
  float* weights = nullptr;         // [rows, cols], rows `stride` elements apart
  std::int64_t stride = 0;
  // The diagonal block [cols, cols] of U, where H^-1 = U^T U and U is upper triangular, rows `factor_stride`
  // elements apart. Only its upper triangle is read; its diagonal is positive.
  const float* factor = nullptr;
  std::int64_t factor_stride = 0;
  bool* mask = nullptr;     // [rows, cols], dense: true stays. Read if m is 0, written otherwise
  float* errors = nullptr;  // [rows, cols], dense: overwritten
  std::int64_t n = 0, m = 0;
  SweepGrid grid = SweepGrid::none;
  // Of a grid: what its largest number is in each row, and the column whose element becomes that, with its
  // sign; one outside of [0, cols) is none of these columns. [rows] each.
  const float* tops = nullptr;
  const std::int32_t* pins = nullptr;
};

/// For each column j from the left: w_j becomes v, which is 0 where it is removed, else w_j or the number of
/// the grid next to it; the error is e = (w_j - v) / U_jj, and w_k -= e U_jk for all k > j. The caller then
/// subtracts errors U[columns, later] from the later columns of the weight. If m is not 0, the mask is chosen
/// as the sweep reaches the first column of each group of m: the n elements of a row with the largest (w_j /
/// U_jj)^2 stay, of equal ones the first; of a last group with less than m at most n. On CUDA one launch,
/// queued and not waited for; its sums round differently from the CPU's, so that elements of almost equal
/// error may be chosen differently. Throws Error on sizes that do not fit and on null memory.
SPARSELOOM_API void column_sweep(const ColumnSweep& sweep, const Executor& executor);

/// A pruned weight to improve by swaps of a kept and a removed element of one row (after SparseSwaps, arXiv
/// 2512.10922). All matrices are dense in memory.
struct PairSwaps {
  std::int64_t rows = 0, cols = 0;
  const float* weights = nullptr;  // [rows, cols], before anything was removed
  float* values = nullptr;         // [rows, cols], what is left, 0 where the mask is false; improved in place
  const float* gram = nullptr;     // H [cols, cols], symmetric, with a positive diagonal
  bool* mask = nullptr;            // [rows, cols]: true stays; improved in place
  std::int64_t m = 0;              // elements are swapped within groups of m; 0: within the row
  std::int64_t most = 0;           // swaps of one row; a row stops earlier where no swap helps
};

/// Makes for each row the swaps that lower e H e^T, where e = weights - values. A swap removes one element
/// and gives another one the value of the least error; its change is computed exactly from H, so that the
/// error never rises. With `most` large enough, no single swap would lower it at the end. Sums are in fp64,
/// rows are independent. Returns the number of swaps. On the CPU only; throws Error for another device, sizes
/// that do not fit and null memory.
SPARSELOOM_API std::int64_t swap_pairs(const PairSwaps& swaps, const Executor& executor);

}  // namespace sparseloom
