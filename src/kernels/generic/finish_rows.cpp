// The pass after a lent GEMM: by vectors where the CPU has them, else element by element.
#include "kernels/shared/cpu/tile.h"
#include "runtime/cpu.h"
#include "sparseloom/generic/dense.h"

namespace sparseloom::kernels::generic {

void finish_rows(const MatmulArgs& args, std::int64_t rows, std::int64_t begin, std::int64_t end) {
#if defined(__x86_64__)
  if (args.dtype != DType::f64 && runtime::active_isa().has(runtime::Isa::avx2)) {
    const auto at = [&](auto* base, std::int64_t stride) {
      using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(base)>>, const std::byte,
                                      std::byte>;
      const std::int64_t bytes = begin * stride * static_cast<std::int64_t>(size_of(args.dtype));
      return base == nullptr ? nullptr : static_cast<Byte*>(base) + bytes;
    };
    return cpu::finish_rows({args.dtype, args.activation, at(args.out, args.out_stride), args.out_stride,
                             end - begin, rows, at(args.residual, args.residual_stride),
                             args.residual_stride});
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
