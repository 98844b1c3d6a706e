// avx512bf16_decode: the forward product of decode.h with VDPBF16PS, which multiplies pairs of bf16.
// Nothing is widened, and a load feeds twice the products. Like this instruction set's panel kernel it treats
// denormals as zero.
#if defined(__x86_64__)

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/bsr_linear/cpu/ops.h"
#include "kernels/bsr_linear/cpu/stream.h"
#include "kernels/shared/cpu/intrinsics.h"
#include "kernels/shared/cpu/tile.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/shared/cpu/avx512_bf16/begin.h"
namespace {
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx512/vector.h"
#include "kernels/shared/cpu/chain-inl.h"
#include "kernels/bsr_linear/cpu/generic/dot-inl.h"
// clang-format on

template <>
struct Dot<cpu::Bf16> {
  static constexpr int kElements = 2 * kLanes;
  [[gnu::always_inline]] static Vec load(const cpu::Bf16* p) { return _mm512_loadu_ps(p); }
  [[gnu::always_inline]] static Vec step(Vec acc, Vec x, Vec w) {
    return _mm512_dpbf16_ps(acc, (__m512bh)(x), (__m512bh)(w));  // casts of vector types keep the bits
  }
};
#include "kernels/bsr_linear/cpu/generic/decode_forward-inl.h"

cpu::DecodeFunction choose_decode(DType, Direction, std::int64_t tokens) {
  return decode_forward_of<cpu::Bf16>(tokens);
}
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs decode_runs{"avx512bf16_decode"};
const DecodeOps kAvx512Bf16Decode = {&decode_runs, avx512_bf16::kLanes, avx512_bf16::choose_decode, nullptr};
}  // namespace sparseloom::kernels::cpu

#endif
