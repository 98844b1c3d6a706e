// The launches of each selection, in translation units of their own.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/shared/sparsify/sparsify.h"

namespace sparseloom::kernels::cuda::sparsify {

/// keep_all, random_fraction and scalar_threshold.
cudaError_t stream(const Sparsify& call);
cudaError_t scalar_fraction(const Sparsify& call);
cudaError_t blockwise_fraction(const Sparsify& call);
cudaError_t per_block_nm(const Sparsify& call);

std::size_t scalar_fraction_workspace(const ConstMatrixView& dense, const SparsifierSpec& spec);
std::size_t blockwise_fraction_workspace(const ConstMatrixView& dense, const SparsifierSpec& spec);

}  // namespace sparseloom::kernels::cuda::sparsify
