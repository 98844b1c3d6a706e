// The pass after a lent GEMM: by vectors where the CPU has them, else element by element.
#include <cstddef>

#include "kernels/shared/cpu/tile.h"
#include "runtime/cpu.h"
#include "sparseloom/generic/dense.h"

namespace sparseloom::kernels::generic {

void finish_rows(const MatmulArgs& args, std::int64_t rows, std::int64_t begin, std::int64_t end) {
#if defined(__x86_64__)
  if (args.dtype != DType::f64 && runtime::active_isa().has(runtime::Isa::avx2)) {
    const auto bytes = [&](std::int64_t stride) {
      return begin * stride * static_cast<std::int64_t>(size_of(args.dtype));
    };
    cpu::RowsOut out{
        args.dtype,      args.activation, static_cast<std::byte*>(args.out) + bytes(args.out_stride),
        args.out_stride, end - begin,     rows};
    if (args.residual != nullptr)
      out.residual = static_cast<const std::byte*>(args.residual) + bytes(args.residual_stride),
      out.residual_stride = args.residual_stride;
    return cpu::finish_rows(out);
  }
#endif
  for (std::int64_t t = begin; t < end; ++t)
    for (std::int64_t o = 0; o < rows; ++o) {
      const std::int64_t at = t * args.out_stride + o;
      const double more = args.residual ? load(args.dtype, args.residual, t * args.residual_stride + o) : 0;
      store(args.dtype, args.out, at, activate(args.activation, load(args.dtype, args.out, at)) + more);
    }
}

}  // namespace sparseloom::kernels::generic
