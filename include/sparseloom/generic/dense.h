// The dense products over any Layout on the CPU, where D is W scattered into the workspace and the executor
// lends the GEMM:
//
//   forward  Y = act(X D^T + bias) + residual
//   dx       dX = dY D
//
// Every call scatters W, and the prediction includes the cost. Keeping D would silently double the layer's
// memory: a caller must ask for that. They read only operands and epilogue of MatmulArgs, as in reference.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "sparseloom/executor.h"
#include "sparseloom/extension.h"
#include "sparseloom/generic/parallel.h"
#include "sparseloom/generic/scalar.h"
#include "sparseloom/layout_concept.h"

namespace sparseloom::kernels::generic {

/// The facts that decide on the dense row of the CPU.
struct DenseProblem {
  Direction direction = Direction::forward;
  DType dtype = DType::f32;
  std::int64_t m = 0, rows = 0, cols = 0;
  int threads = 1;
  bool can_gemm = false;
  bool has_epilogue_pass = false;  // an activation or a residual
  double copy_bytes = 0;           // of one core, per second, read and written
  double gemm_flops = 0;           // of the lent GEMM, per second; 0: not measured
};

/// Why the dense row cannot run the problem on the CPU, or null.
inline const char* refuse_dense_on_cpu(const DenseProblem& p) noexcept {
  if (!p.can_gemm) return "the executor lends no GEMM";
  if (p.direction == Direction::dw) return "dw is made at the stored blocks only, without a dense buffer";
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "has nothing to multiply: a size is 0";
  if (p.gemm_flops <= 0)
    return "the lent GEMM was not measured: sparse wins even against the machine's peak, or another kernel "
           "was forced";
  return nullptr;
}

/// Seconds per element of the pass after the product: GELU of 16 bits by AVX2 on one thread, rounded up.
inline constexpr double kEpilogueSeconds = 0.5e-9;

/// The predicted time of the product with an existing D.
inline double predict_gemm_on_cpu_us(const DenseProblem& p) noexcept {
  const double m = static_cast<double>(p.m), rows = static_cast<double>(p.rows);
  const double pass = p.has_epilogue_pass ? kEpilogueSeconds * m * rows / std::max(1, p.threads) : 0;
  return 1e6 * (2.0 * m * rows * static_cast<double>(p.cols) / p.gemm_flops + pass);
}

/// Bandwidth of the scatter over that of copies inside the last-level cache. D is read from memory to be
/// written, and written back before the product reads it. The median of 58 weights of .5 to 140 MB on a Zen 4
/// was a tenth.
inline constexpr double kScatterShareOfCopy = 0.12;

/// The predicted time of the row. The scatter writes every element of D once; the stored values are read
/// once.
inline double predict_dense_on_cpu_us(const DenseProblem& p) noexcept {
  const double bytes = static_cast<double>(p.rows * p.cols) * static_cast<double>(size_of(p.dtype));
  const double rate = kScatterShareOfCopy * p.copy_bytes * std::max(1, p.threads);
  return 1e6 * bytes / rate + predict_gemm_on_cpu_us(p);
}

/// How NaN spreads in the dense row, unlike in the sparse kernels.
inline constexpr const char* kDenseCaveat =
    "W is scattered and multiplied whole in every call, so a NaN in x spreads to every output";

/// D in the workspace.
template <Layout L>
MatrixView dense_of(const MatmulArgs& args, const typename L::View& w) {
  return {args.workspace, args.accumulate ? DType::f32 : args.dtype, L::rows(w), L::cols(w), L::cols(w)};
}

inline Gemm gemm_of(const MatmulArgs& args, const MatrixView& dense) {
  Gemm product;
  product.device = args.device;
  product.stream = args.stream;
  if (args.direction == Direction::dw) {
    product.a = {args.a, args.dtype, args.m, dense.rows, args.a_stride};
    product.a_transposed = true;
    product.b = {args.b, args.dtype, args.m, dense.cols, args.b_stride};
    product.c = dense;
    return product;
  }
  const bool forward = args.direction == Direction::forward;
  product.a = {args.a, args.dtype, args.m, forward ? dense.cols : dense.rows, args.a_stride};
  product.b = dense;
  product.b_transposed = forward;
  product.c = {args.out, args.dtype, args.m, forward ? dense.rows : dense.cols, args.out_stride};
  product.bias = args.bias;
  return product;
}

// The GEMM ends with the bias. A later pass does the rest of the epilogue: out <- act(out) + residual.
inline bool needs_epilogue_pass(const MatmulArgs& args) {
  return args.activation != Activation::none || args.residual != nullptr;
}

/// The pass for tokens [begin, end) of `rows` outputs, of floating point.
SPARSELOOM_API void finish_rows(const MatmulArgs& args, std::int64_t rows, std::int64_t begin,
                                std::int64_t end);

inline void epilogue_pass(const MatmulArgs& args, std::int64_t rows, const Executor& executor) {
  const double us = 1e6 * kEpilogueSeconds * static_cast<double>(args.m) * static_cast<double>(rows);
  const Executor threads = runtime::if_worth_it(executor, us);
  runtime::parallel_for(threads, args.m,
                        [&](std::int64_t begin, std::int64_t end) { finish_rows(args, rows, begin, end); });
}

/// Bytes of the pieces of D in which forward scatters W, for each thread, whose L2 caches grow with them. Two
/// threads of a Zen 5 with 1 MiB of L2 each, bf16 bitmaps, 40 to 128 tokens: half, a quarter, an eighth,
/// twice and four times as much measured slower.
inline constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;

/// Bytes of x which every piece reads again, at most; with more, D is one piece, through memory and back:
/// bf16, 6 MB of x .75 of torch's rate for .64, 23 MB .98 for .91; 1 to 4 MB differ less than runs do (Zen
/// 5).
inline constexpr std::int64_t kMostReadAgain = std::int64_t{1} << 20;

/// Rows of D that one task writes, unless the layout says how many its unpack writes best. An executor may
/// hand out indices one by one, for which single rows are too little work; 32 rows cut no block of a side up
/// to 32, and give a layer of 512 rows 16 tasks.
inline constexpr std::int64_t kUnpackedRows = 32;

/// Bytes of D that one thread writes in a microsecond: kScatterShareOfCopy of a Zen 4's copies, 42 GB/s.
inline constexpr double kUnpackedBytesPerUs = 5e3;

/// L::unpack. A layout with a faster copy on this machine specialises it beside its verb.
template <Layout L>
void unpack_rows(const typename L::View& w, const void* values, const MatrixView& dense, std::int64_t begin,
                 std::int64_t end) {
  L::unpack(w, values, dense, begin, end);
}

template <Layout L>
std::int64_t rows_at_once(const typename L::View& w) {
  if constexpr (requires { L::rows_at_once(w); })
    return L::rows_at_once(w);
  else
    return kUnpackedRows;
}

/// Rows of W in one piece of D: all of them for dX, which adds up over them.
template <Layout L>
std::int64_t rows_of_piece(const MatmulArgs& args, const typename L::View& w, int threads) {
  if (args.direction != Direction::forward) return L::rows(w);
  const std::int64_t at_once = rows_at_once<L>(w);
  const std::int64_t row_bytes = L::cols(w) * static_cast<std::int64_t>(size_of(args.dtype));
  if (args.m * row_bytes > kMostReadAgain) return L::rows(w);
  const std::int64_t bytes = kPieceBytes * std::max(2, threads);
  const std::int64_t pieces = std::max<std::int64_t>(1, L::rows(w) * row_bytes / bytes);
  return ((L::rows(w) + pieces - 1) / pieces + at_once - 1) / at_once * at_once;
}

/// Rows [first, last) of W, scattered to the first rows of `dense` by the executor's threads.
template <Layout L>
void scatter_on_cpu(const MatmulArgs& args, const typename L::View& w, const MatrixView& dense,
                    std::int64_t first, std::int64_t last, const Executor& executor) {
  const auto row_bytes = static_cast<std::int64_t>(size_of(dense.dtype)) * dense.stride;
  const Executor threads =
      runtime::if_worth_it(executor, static_cast<double>((last - first) * row_bytes) / kUnpackedBytesPerUs);
  // unpack writes row r of W to row r of its matrix, which begins before D if the piece is not the first
  MatrixView whole = dense;
  whole.rows = L::rows(w);
  whole.data = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(dense.data) -
                                       static_cast<std::uintptr_t>(first * row_bytes));
  const std::int64_t at_once = rows_at_once<L>(w);
  runtime::parallel_tasks(threads, (last - first + at_once - 1) / at_once, [&](std::int64_t task) {
    const std::int64_t begin = first + task * at_once;
    unpack_rows<L>(w, args.values, whole, begin, std::min(begin + at_once, last));
  });
}

/// Forward and dX on the CPU: the lent GEMM, parallel regions for the scatter and, if it is worth it, one for
/// the rest of the epilogue. They are before and after the GEMM, so that they do not nest. Forward takes W
/// in pieces of rows that stay in the caches between the scatter and their product.
template <Layout L>
int dense_on_cpu(const MatmulArgs& args, const typename L::View& w, const Executor& executor) {
  MatrixView dense = dense_of<L>(args, w);
  const std::int64_t rows = dense.rows, piece = rows_of_piece<L>(args, w, executor.num_threads);
  for (std::int64_t first = 0; first < rows; first += piece) {
    const std::int64_t last = std::min(first + piece, rows);
    dense.rows = last - first;
    scatter_on_cpu<L>(args, w, dense, first, last, executor);
    Gemm product = gemm_of(args, dense);
    if (args.direction == Direction::forward) {
      const std::int64_t bytes = first * static_cast<std::int64_t>(size_of(args.dtype));
      product.c.data = static_cast<std::byte*>(product.c.data) + bytes;
      if (product.bias != nullptr) product.bias = static_cast<const std::byte*>(product.bias) + bytes;
    }
    executor.gemm(executor.context, product);
  }
  dense.rows = rows;
  if (needs_epilogue_pass(args)) epilogue_pass(args, dense.rows, executor);
  return 0;
}

}  // namespace sparseloom::kernels::generic
