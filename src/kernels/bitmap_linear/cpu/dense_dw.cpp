// The row dense_dw of bitmaps: pieces of rows, which stay in the caches between the product and the copy of
// what is stored.
#include "kernels/generic/dense_dw.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/bitmap_linear/cpu/moves.h"
#include "kernels/bitmap_linear/rows.h"
#include "sparseloom/generic/parallel.h"
#include "sparseloom/generic/reference.h"

namespace sparseloom::kernels {
namespace {

/// Rows of a piece, for products that still fill the lent GEMM's tiles.
std::int64_t piece_of(std::int64_t rows, std::int64_t cols, DType dtype, int threads) {
  constexpr std::int64_t kLeast = 128;
  const std::int64_t bytes = cols * static_cast<std::int64_t>(size_of(dtype));
  return std::min(
      rows, std::max(kLeast, generic::kPieceBytes * std::max(2, threads) / std::max<std::int64_t>(1, bytes)));
}

Refusal propose(const LinearProblem& p, const plan::Machine&, Proposals<BitmapLinear>& out) {
  constexpr double kPackedNs = 0.5;
  return generic::propose_dense_dw(p, kPackedNs, piece_of(p.rows, p.cols, p.dtype, p.threads), out);
}

int launch(const BitmapLinear::Args& args, const BitmapLinear::Schedule&, const Executor& executor) {
  const BitmapView& w = args.view;
  MatmulArgs product = args.product;
  if (product.accumulate) {  // which a GEMM of 16 bits would round first
    generic::dw<Bitmap>(product, w, executor);
    return 0;
  }
  const auto pack = cpu::bitmap_moves(product.dtype).pack;
  const auto size = static_cast<std::int64_t>(size_of(product.dtype)), row_bytes = w.cols * size;
  const std::int64_t piece = piece_of(w.rows, w.cols, product.dtype, executor.num_threads);
  const auto* const dy = static_cast<const std::byte*>(product.a);
  for (std::int64_t first = 0; first < w.rows; first += piece) {
    const std::int64_t last = std::min(first + piece, w.rows);
    const MatrixView dense{product.workspace, product.dtype, last - first, w.cols, w.cols};
    product.a = dy + first * size;
    executor.gemm(executor.context, generic::gemm_of(product, dense));
    // pack reads row r of W from row r of its matrix, which begins before the piece
    const ConstMatrixView whole{reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(dense.data) -
                                                              static_cast<std::uintptr_t>(first * row_bytes)),
                                product.dtype, w.rows, w.cols, w.cols};
    const Executor threads = runtime::if_worth_it(
        executor, static_cast<double>((last - first) * row_bytes) / generic::kUnpackedBytesPerUs);
    runtime::parallel_for(threads, last - first, [&](std::int64_t begin, std::int64_t end) {
      pack(w, whole, product.out, first + begin, first + end);
    });
  }
  return 0;
}

}  // namespace

const Row<BitmapLinear> kBitmapDenseDw{"dense_dw", Placement::cpu, propose, launch, generic::kDenseDwCaveat};

}  // namespace sparseloom::kernels
