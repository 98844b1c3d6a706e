// The expand and select kernels of all instruction sets.
#pragma once

#include "kernels/semi24_linear/cpu/expand.h"
#include "kernels/semi24_linear/cpu/select.h"

namespace sparseloom::kernels::cpu {

/// The kernel of a dtype; null where there is none.
const ExpandOps* expand_avx2(DType dtype) noexcept;
const ExpandOps* expand_avx512(DType dtype) noexcept;
const ExpandOps* expand_avx512_bf16(DType dtype) noexcept;  // bf16 only; needs avx512_vbmi2 too

const SelectOps* select_avx2(DType dtype) noexcept;
const SelectOps* select_avx512(DType dtype) noexcept;
const SelectOps* select_avx512_bf16(DType dtype) noexcept;  // bf16 only

}  // namespace sparseloom::kernels::cpu
