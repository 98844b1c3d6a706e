#include "kernels/semi24_linear/rows.h"

namespace sparseloom::kernels {

#ifdef SPARSELOOM_HAVE_CUDA

std::span<const Row<Semi24Linear>> semi24_cuda_rows() {
  using namespace cuda::semi24_rows;
  static const Row<Semi24Linear> rows[] = {sm90_decode(), sm90_wgmma(), sm90_dx(),
                                           sm80_mma(),    sm80_ffma(),  dense()};
  return rows;
}

std::span<const Row<Semi24Scaled>> semi24_scaled_cuda_rows() {
  using namespace cuda::semi24_rows;
  static const Row<Semi24Scaled> rows[] = {sm90_scaled_decode(), sm90_scaled_wgmma(), sm80_scaled_dots()};
  return rows;
}

namespace cuda::semi24_rows {
namespace {

double bytes_of(const LinearProblem& p, double size, double out_size) {
  const double m = static_cast<double>(p.m), rows = static_cast<double>(p.rows),
               cols = static_cast<double>(p.cols);
  // Half of the values, and a bit of metadata per element of W.
  return rows * cols * (size / 2 + 0.125) + m * (size * cols + out_size * rows * (p.residual ? 2 : 1));
}

}  // namespace

Refusal refuse(const LinearProblem& p) {
  if (p.direction != Direction::forward)
    return {"supports forward only, the direction is {}", name_of(p.direction)};
  if (p.dtype != DType::bf16 && p.dtype != DType::f16)
    return {"multiplies bf16 and f16 only, the dtype is {}", name_of(p.dtype)};
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "has nothing to multiply: a size is 0";
  return {};
}

Refusal refuse(const ScaledLinearProblem& p) {
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "has nothing to multiply: a size is 0";
  return {};
}

Refusal refuse_on_hopper(const LinearProblem& p, const plan::Machine& machine) {
  if (machine.cuda.sm != 90)
    return {"needs compute capability 9.0, the device has {}.{}", machine.cuda.sm / 10, machine.cuda.sm % 10};
  const int multiple = k_tile_of(p) / 8;  // columns whose stored values are 16 bytes
  if (p.cols % multiple != 0) return {"needs in features in multiples of {}, W has {}", multiple, p.cols};
  if (!p.aligned) return "needs operands whose rows lie at multiples of 16 bytes";
  return {};
}

double bytes_of(const LinearProblem& p) { return bytes_of(p, 2, 2); }
double bytes_of(const ScaledLinearProblem& p) { return bytes_of(p, 1, static_cast<double>(size_of(p.out))); }

}  // namespace cuda::semi24_rows

#else

std::span<const Row<Semi24Linear>> semi24_cuda_rows() { return {}; }
std::span<const Row<Semi24Scaled>> semi24_scaled_cuda_rows() { return {}; }

#endif

}  // namespace sparseloom::kernels
