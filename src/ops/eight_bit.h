// Limits of products of 8-bit operands, whatever the layout of W.
#pragma once

#include <cstdint>
#include <string>

#include "core/check.h"
#include "sparseloom/dtype.h"

namespace sparseloom::ops {

// 2^17 products of (-128)^2 add up to 2^31, one more than int32 holds.
inline constexpr std::int64_t kInt8Products = (std::int64_t{1} << 17) - 1;

/// Throws Error unless 8-bit operands have outputs of this dtype. `problem`: the type with the member `out`.
inline void require_out_of_8_bits(DType dtype, DType out, const char* problem) {
  if (out == DType::bf16 || out == DType::f32) return;
  core::fail("plan", std::string("an output of bf16 or f32 for ") + name_of(dtype) + " operands",
             name_of(out), std::string("set ") + problem + "::out (out_dtype) to one of them");
}

}  // namespace sparseloom::ops
