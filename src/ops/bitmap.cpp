// The bitmap indices that a thread has validated.
#include "plan/seen_indices.h"
#include "sparseloom/bitmap_ops.h"

namespace sparseloom {

void bitmap_require_valid(const char* op, const BitmapView& w, const std::uint64_t* writes) {
  static thread_local plan::SeenIndices seen;
  if (!Bitmap::has_memory(w)) return Bitmap::validate(op, w);
  const std::span bits(w.bits, static_cast<std::size_t>(w.rows * w.row_bytes()));
  const plan::BoundedList<std::uint8_t> index{{w.rows, w.cols, w.stored, bits}, w.crow, writes};
  if (seen.contains(index)) return;
  Bitmap::validate(op, w);
  seen.add(index);
}

}  // namespace sparseloom
