#include "kernels/csr_linear/rows.h"

namespace sparseloom::kernels {

#ifdef SPARSELOOM_HAVE_CUDA

std::span<const CsrRow> csr_cuda_rows() {
  using namespace cuda::csr_rows;
  static const CsrRow rows[] = {gather(), slabs(), sampled(), dense()};
  return rows;
}

namespace cuda::csr_rows {

Refusal refuse(const LinearProblem& p) {
  if (size_of(p.dtype) > 4 || is_scaled(p.dtype)) return {"does not support {}", name_of(p.dtype)};
  if (p.m == 0 || p.rows == 0 || p.cols == 0) return "has nothing to multiply: a size is 0";
  return {};
}

double stored_bytes(const LinearProblem& p) {
  return static_cast<double>(p.stored) * static_cast<double>(size_of(p.dtype) + sizeof(std::int32_t));
}

}  // namespace cuda::csr_rows

#else

std::span<const CsrRow> csr_cuda_rows() { return {}; }

#endif

}  // namespace sparseloom::kernels
