// The rows of this library for the verb block_attention: CUDA's, the CPU's, and the reference.
// bsr_linear/cuda/rows.h has the contract of launches of CUDA rows.
#pragma once

#include <span>

#include "sparseloom/block_attention.h"

namespace sparseloom::kernels {

using AttentionRow = Row<block_attention::Attention>;

/// In order of preference at equal predictions. Empty in a build without CUDA.
std::span<const AttentionRow> attention_cuda_rows();

namespace cuda::attention {
AttentionRow sm90_wgmma();
AttentionRow sm80_mma();
}  // namespace cuda::attention

/// In order of preference at equal predictions. Empty on other machines than x86-64.
std::span<const AttentionRow> attention_cpu_rows();

/// The row `reference`: every problem on the CPU, both directions.
AttentionRow attention_reference_row();

}  // namespace sparseloom::kernels
