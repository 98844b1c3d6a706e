#include "kernels/semi24_linear/cuda/rows.h"

namespace sparseloom::kernels {

#ifdef SPARSELOOM_HAVE_CUDA

std::span<const Row<Semi24Linear>> semi24_cuda_rows() {
  using namespace cuda::semi24_rows;
  static const Row<Semi24Linear> rows[] = {sm90_decode(), sm90_wgmma(), sm80_mma(), dense()};
  return rows;
}

namespace cuda::semi24_rows {

Refusal refuse(const LinearProblem& p) {
  if (p.direction != Direction::forward)
    return {"multiplies forward only, the direction is {}", name_of(p.direction)};
  if (p.dtype != DType::bf16 && p.dtype != DType::f16)
    return {"multiplies bf16 and f16 only, the dtype is {}", name_of(p.dtype)};
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "nothing to multiply";
  return {};
}

Refusal refuse_on_hopper(const LinearProblem& p, const plan::Machine& machine) {
  if (machine.cuda.sm != 90)
    return {"needs compute capability 9.0, the device has {}.{}", machine.cuda.sm / 10, machine.cuda.sm % 10};
  if (const Refusal why = refuse(p)) return why;
  if (p.cols % 16 != 0) return {"needs in features in multiples of 16, W has {}", p.cols};
  if (!p.aligned) return "needs operands whose rows lie at multiples of 16 bytes";
  return {};
}

double bytes_of(const LinearProblem& p) {
  const double m = static_cast<double>(p.m), rows = static_cast<double>(p.rows),
               cols = static_cast<double>(p.cols);
  constexpr double kOfDense = 0.5 + 0.0625;  // values and metadata of 16-bit weights
  return 2 * (rows * cols * kOfDense + m * cols + m * rows * (p.residual ? 2 : 1));
}

}  // namespace cuda::semi24_rows

#else

std::span<const Row<Semi24Linear>> semi24_cuda_rows() { return {}; }

#endif

}  // namespace sparseloom::kernels
