// Chooses the copies of bitmaps, and lends them to the dense row.
#include "kernels/bitmap_linear/cpu/moves.h"

#include "runtime/cpu.h"
#include "sparseloom/bitmap_linear.h"

namespace sparseloom::kernels::cpu {

BitmapMoves bitmap_moves([[maybe_unused]] DType dtype) {
#if defined(__x86_64__)
  static const bool has = runtime::active_isa().has(runtime::Isa::avx512_vbmi2);
  if (has && (size_of(dtype) == 2 || size_of(dtype) == 4)) return kBitmapMovesVbmi2;
#endif
  return {Bitmap::unpack, Bitmap::pack};
}

}  // namespace sparseloom::kernels::cpu

namespace sparseloom::kernels::generic {

template <>
void unpack_rows<Bitmap>(const BitmapView& w, const void* values, const MatrixView& dense, std::int64_t begin,
                         std::int64_t end) {
  cpu::bitmap_moves(dense.dtype).unpack(w, values, dense, begin, end);
}

}  // namespace sparseloom::kernels::generic
