#include "kernels/tiles_linear/rows.h"

namespace sparseloom::kernels {

TilesCounts counts_of(const LinearProblem& p) {
  const std::int64_t parts = (p.shape & 1) + 1, side = parts * 64, halves = (p.shape >> 1) * parts * parts;
  const auto tiles = [&](std::int64_t size) { return (size + side - 1) / side * parts; };
  return {p.stored / 4096 - halves / 2, halves, tiles(p.rows) * tiles(p.cols)};
}

#ifdef SPARSELOOM_HAVE_CUDA

std::span<const Row<TilesLinear>> tiles_cuda_rows() {
  static const Row<TilesLinear> rows[] = {cuda::tiles_rows::sm90_decode(), cuda::tiles_rows::sm90_wgmma(),
                                          cuda::tiles_rows::sm80_mma()};
  return rows;
}

namespace cuda::tiles_rows {

Refusal refuse(const LinearProblem& p) {
  if (p.direction != Direction::forward)
    return {"supports forward only, the direction is {}", name_of(p.direction)};
  if (p.dtype != DType::bf16 && p.dtype != DType::f16)
    return {"multiplies bf16 and f16 only, the dtype is {}", name_of(p.dtype)};
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "has nothing to multiply: a size is 0";
  if (!p.aligned || p.cols % 8 != 0) return "needs operands whose rows lie at multiples of 16 bytes";
  return {};
}

Refusal refuse_on_hopper(const LinearProblem& p, const plan::Machine& machine) {
  if (const Refusal why = refuse(p)) return why;
  if (machine.cuda.sm != 90)
    return {"needs compute capability 9.0, the device has {}.{}", machine.cuda.sm / 10, machine.cuda.sm % 10};
  return {};
}

double bytes_of(const LinearProblem& p) {
  const double m = static_cast<double>(p.m), rows = static_cast<double>(p.rows),
               cols = static_cast<double>(p.cols);
  return 2.0 * static_cast<double>(p.stored) + 512 * static_cast<double>(counts_of(p).halves) +
         2 * m * (cols + rows * (p.residual ? 2 : 1));
}

}  // namespace cuda::tiles_rows

#else

std::span<const Row<TilesLinear>> tiles_cuda_rows() { return {}; }

#endif

}  // namespace sparseloom::kernels
