// avx512_softmax: the tiles by this instruction set.
#if defined(__x86_64__)

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "kernels/block_attention/cpu/tile.h"
#include "kernels/shared/cpu/cell.h"
#include "kernels/shared/cpu/intrinsics.h"
#include "sparseloom/activation.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/shared/cpu/avx512/begin.h"
namespace {
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx512/vector.h"
#include "kernels/shared/cpu/activation-inl.h"
#include "kernels/block_attention/cpu/generic/mask-inl.h"
#include "kernels/block_attention/cpu/generic/forward-inl.h"
#include "kernels/block_attention/cpu/generic/backward-inl.h"
}  // namespace
#include "kernels/shared/cpu/end.h"
// clang-format on

namespace sparseloom::kernels::cpu {
static constinit Runs softmax_runs{"avx512_softmax"};

const AttentionOps* attention_avx512(DType dtype) noexcept {
  using namespace avx512;
  static const AttentionOps f32{&softmax_runs, forward_tile<float>, queries_tile<float>, keys_tile<float>},
      f16{&softmax_runs, forward_tile<F16>, queries_tile<F16>, keys_tile<F16>},
      bf16{&softmax_runs, forward_tile<Bf16>, queries_tile<Bf16>, keys_tile<Bf16>};
  return dtype == DType::f32 ? &f32 : dtype == DType::f16 ? &f16 : dtype == DType::bf16 ? &bf16 : nullptr;
}
}  // namespace sparseloom::kernels::cpu

#endif
