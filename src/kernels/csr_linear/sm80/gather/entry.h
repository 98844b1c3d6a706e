// The host entry of gather. It queues its launch on args.stream, and returns a cudaError_t.
#pragma once

#include <cstddef>

#include "kernels/csr_linear/product.h"

namespace sparseloom::kernels::cuda {

/// Tokens that are multiplied at a time where there are several.
inline constexpr int kCsrGatherTokens = 4;

/// Whether x of so many terms is brought into shared memory; more are read from where they lie. dW: of that
/// many tokens.
bool csr_gather_stages(Direction direction, std::int64_t depth, std::int64_t m, DType dtype);

int sm80_csr_gather(const CsrProduct& product) noexcept;

}  // namespace sparseloom::kernels::cuda
