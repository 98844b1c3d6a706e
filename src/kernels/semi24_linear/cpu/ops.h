// The expand kernels of AVX-512, and AVX2's other kernels. AVX2 has no expand instruction; permutations from
// a table took twice select's time (docs/log).
#pragma once

#include "kernels/semi24_linear/cpu/expand.h"
#include "kernels/semi24_linear/cpu/packed.h"

namespace sparseloom::kernels::cpu {

/// The kernel of a dtype, or null.
const ExpandOps* expand_avx512(DType dtype) noexcept;
const ExpandOps* expand_avx512_bf16(DType dtype) noexcept;  // bf16 only; needs avx512_vbmi2 too

const PackedOps* select_avx2(DType dtype) noexcept;
const PackedOps* gather_avx2(DType dtype) noexcept;
const PackedOps* columns_avx2(DType dtype) noexcept;
const PackedOps* spread_avx2(DType dtype) noexcept;
const PackedOps* strips_avx2(DType dtype) noexcept;

}  // namespace sparseloom::kernels::cpu
