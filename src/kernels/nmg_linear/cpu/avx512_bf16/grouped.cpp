// avx512bf16_grouped: the grouped kernels with the gradients by VDPBF16PS.
#if defined(__x86_64__)

#include "kernels/nmg_linear/cpu/grouped.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "kernels/shared/cpu/cell.h"
#include "kernels/shared/cpu/intrinsics.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/shared/cpu/avx512_bf16/begin.h"
namespace {
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx512/vector.h"
#include "kernels/nmg_linear/cpu/generic/grouped-inl.h"
#include "kernels/nmg_linear/cpu/avx512/outputs_unpack-inl.h"
#include "kernels/nmg_linear/cpu/avx512/outputs-inl.h"
#include "kernels/nmg_linear/cpu/avx512_bf16/outputs_pairs-inl.h"
// clang-format on

// Cells of dW of two tokens, which VDPBF16PS multiplies at once: in whatever order, if x and dY have the
// same.
struct Cells {
  static constexpr std::int64_t kTokens = 2;
  template <class T>
  [[gnu::always_inline]] static Vec pack(const cpu::TokenMatrix& matrix, std::int64_t token,
                                         std::int64_t feature, std::int64_t inside) {
    const Vec low = features_of<T>(matrix, token, feature, inside),
              high = features_of<T>(matrix, token + kLanes, feature, inside);
    return _mm512_castsi512_ps(
        _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(low), 16), _mm512_castps_si512(high)));
  }
  [[gnu::always_inline]] static Vec step(Vec sum, Vec dy, Vec x) {
    return _mm512_dpbf16_ps(sum, (__m512bh)(dy), (__m512bh)(x));  // casts of vector types keep the bits
  }
};
// clang-format off
#include "kernels/nmg_linear/cpu/generic/dx-inl.h"
#include "kernels/nmg_linear/cpu/avx512_bf16/dx_pairs-inl.h"
#include "kernels/nmg_linear/cpu/generic/dw-inl.h"
}  // namespace
#include "kernels/shared/cpu/end.h"
// clang-format on

namespace sparseloom::kernels::cpu {
static constinit Runs grouped_runs{"avx512bf16_grouped"};

const GroupedOps* grouped_avx512bf16(DType dtype) noexcept {
  static const GroupedOps bf16 = [] {
    GroupedOps ops = avx512_bf16::grouped_ops<Bf16>(&grouped_runs);
    ops.dx_pairs = avx512_bf16::grouped_dx<Bf16, avx512_bf16::PairSums>;
    ops.outputs = [](const OutputJob& job, std::span<const TokenTile> tiles, Range chunks,
                     const OutputScratch& scratch) {
      using namespace avx512_bf16;
      const auto multiply =
          job.blocks.pairs ? grouped_outputs<Bf16, PairInputs> : grouped_outputs<Bf16, FloatInputs<Bf16>>;
      multiply(job, tiles, chunks, scratch);
    };
    ops.pairs_of_inputs = true;
    return ops;
  }();
  return dtype == DType::bf16 ? &bf16 : nullptr;
}
}  // namespace sparseloom::kernels::cpu

#endif
