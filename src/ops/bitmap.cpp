// The bitmap indices that a thread has validated, and copies of whole weights.
#include "kernels/bitmap_linear/cpu/moves.h"
#include "plan/seen_indices.h"
#include "sparseloom/bitmap_ops.h"
#include "sparseloom/generic/dense.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom {
namespace {

/// Calls move(begin, end) for all rows, on threads where that is worth it.
template <class Move>
void in_parallel(const BitmapView& w, DType dtype, const Executor& executor, Move&& move) {
  const double bytes = static_cast<double>(w.rows * w.cols) * static_cast<double>(size_of(dtype));
  const double us = bytes / kernels::generic::kUnpackedBytesPerUs;
  runtime::parallel_for(runtime::if_worth_it(executor, us), w.rows, move);
}

}  // namespace

void bitmap_require_valid(const char* op, const BitmapView& w, const std::uint64_t* writes) {
  static thread_local plan::SeenIndices seen;
  if (!Bitmap::has_memory(w)) return Bitmap::validate(op, w);
  const std::span bits(w.bits, static_cast<std::size_t>(w.rows * w.row_bytes()));
  const plan::BoundedList<std::uint8_t> index{{w.rows, w.cols, w.stored, bits}, w.crow, writes};
  if (seen.contains(index)) return;
  Bitmap::validate(op, w);
  seen.add(index);
}

void bitmap_unpack(const BitmapView& w, const void* values, const MatrixView& dense,
                   const Executor& executor) {
  const auto unpack = kernels::cpu::bitmap_moves(dense.dtype).unpack;
  in_parallel(w, dense.dtype, executor,
              [&](std::int64_t begin, std::int64_t end) { unpack(w, values, dense, begin, end); });
}

void bitmap_pack(const BitmapView& w, const ConstMatrixView& dense, void* values, const Executor& executor) {
  const auto pack = kernels::cpu::bitmap_moves(dense.dtype).pack;
  in_parallel(w, dense.dtype, executor,
              [&](std::int64_t begin, std::int64_t end) { pack(w, dense, values, begin, end); });
}

}  // namespace sparseloom
