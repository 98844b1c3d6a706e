// Writes finished tiles with the machine's widest vectors: whole squares with AVX-512, the rest with AVX2.
#if defined(__x86_64__)

#include "kernels/shared/cpu/tile.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "core/check.h"
#include "kernels/shared/cpu/cell.h"
#include "runtime/cpu.h"

namespace sparseloom::kernels::cpu {
namespace {

/// The number of outputs that AVX-512 writes: whole squares of the tile, whose outputs are rounded up to
/// eights. It is 0 without AVX-512, and for tiles of AVX2 kernels whose tokens are an odd number of eights.
std::int64_t wide(const TileOut& out) {
  static const bool has = runtime::active_isa().has(runtime::Isa::avx512);
  const std::int64_t side = kAvx512Tile.lanes;
  return has && out.tile_stride % side == 0
             ? std::min(core::round_up(out.outputs, kGroup) / side * side, out.outputs)
             : 0;
}

template <class T>
T* at(T* base, std::int64_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return base == nullptr ? nullptr : static_cast<Byte*>(base) + bytes;
}

/// `o` without its first `first` outputs.
TileOut from(const TileOut& o, std::int64_t first) {
  const std::int64_t bytes = first * static_cast<std::int64_t>(size_of(o.dtype));
  TileOut rest = o;
  rest.tile += first * o.tile_stride, rest.outputs -= first;
  rest.bias = at(o.bias, bytes), rest.out = at(o.out, bytes), rest.residual = at(o.residual, bytes);
  if (o.scale != nullptr) rest.scale += first;
  return rest;
}

}  // namespace

void write_tile(const TileOut& out) {
  const std::int64_t first = wide(out);
  if (first > 0) {
    TileOut whole = out;
    whole.outputs = first;
    kAvx512Tile.write(whole);
  }
  if (first < out.outputs) kAvx2Tile.write(from(out, first));
}

void finish_rows(const RowsOut& out) {
  static const bool has = runtime::active_isa().has(runtime::Isa::avx512);
  (has ? kAvx512Tile : kAvx2Tile).finish(out);
}

}  // namespace sparseloom::kernels::cpu

#endif
