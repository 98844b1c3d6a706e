// The expand kernels of all instruction sets, and AVX2's select kernel: with AVX-512 that gained 1 % at 16
// tokens in fp32 and nothing in bf16 (docs/performance_log.md).
#pragma once

#include "kernels/semi24_linear/cpu/expand.h"
#include "kernels/semi24_linear/cpu/select.h"

namespace sparseloom::kernels::cpu {

/// The kernel of a dtype; null where there is none.
const ExpandOps* expand_avx2(DType dtype) noexcept;
const ExpandOps* expand_avx512(DType dtype) noexcept;
const ExpandOps* expand_avx512_bf16(DType dtype) noexcept;  // bf16 only; needs avx512_vbmi2 too

const SelectOps* select_avx2(DType dtype) noexcept;

}  // namespace sparseloom::kernels::cpu
