// The host entry of sampled. It queues its launches on args.stream, and returns a cudaError_t.
#pragma once

#include <cstddef>

#include "kernels/csr_linear/product.h"

namespace sparseloom::kernels::cuda {

/// Tokens of a lane: 1, 2 or 4.
constexpr int csr_sampled_tokens(std::int64_t m) { return m <= 32 ? 1 : m <= 64 ? 2 : 4; }
/// Tokens that are multiplied, those beyond m as zeros.
constexpr std::int64_t csr_sampled_padded(std::int64_t m) {
  const std::int64_t tile = 32 * csr_sampled_tokens(m);
  return (m + tile - 1) / tile * tile;
}

/// Bytes of args.workspace.
std::size_t csr_sampled_workspace(std::int64_t rows, std::int64_t cols, std::int64_t m, DType dtype);

int sm80_csr_sampled(const CsrProduct& product) noexcept;

}  // namespace sparseloom::kernels::cuda
