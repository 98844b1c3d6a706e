// The expand kernels of all instruction sets.
#pragma once

#include "kernels/semi24_linear/cpu/expand.h"

namespace sparseloom::kernels::cpu {

/// `ops` by dtype; null where there is none.
const ExpandOps* expand_avx2(DType dtype) noexcept;
const ExpandOps* expand_avx512(DType dtype) noexcept;
const ExpandOps* expand_avx512_bf16(DType dtype) noexcept;  // bf16 only; needs avx512_vbmi2 too

}  // namespace sparseloom::kernels::cpu
