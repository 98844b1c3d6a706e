// The expand kernels of AVX-512, and AVX2's other kernels. AVX2 has no expand instruction; permutations from
// a table took twice select's time (docs/log).
#pragma once

#include "kernels/semi24_linear/cpu/columns.h"
#include "kernels/semi24_linear/cpu/expand.h"
#include "kernels/semi24_linear/cpu/gather.h"
#include "kernels/semi24_linear/cpu/scatter.h"
#include "kernels/semi24_linear/cpu/select.h"
#include "kernels/semi24_linear/cpu/spread.h"

namespace sparseloom::kernels::cpu {

/// The kernel of a dtype, or null.
const ExpandOps* expand_avx512(DType dtype) noexcept;
const ExpandOps* expand_avx512_bf16(DType dtype) noexcept;  // bf16 only; needs avx512_vbmi2 too

const SelectOps* select_avx2(DType dtype) noexcept;

const GatherOps* gather_avx2(DType dtype) noexcept;

const ColumnsOps* columns_avx2(DType dtype) noexcept;

const SpreadOps* spread_avx2(DType dtype) noexcept;

const ScatterOps* scatter_avx2(DType dtype) noexcept;

}  // namespace sparseloom::kernels::cpu
