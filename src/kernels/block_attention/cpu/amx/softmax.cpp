// amx_softmax: the forward pass of bf16 on AMX tiles.
#if defined(__x86_64__)

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/block_attention/cpu/tile.h"
#include "kernels/shared/cpu/cell.h"
#include "kernels/shared/cpu/intrinsics.h"
#include "sparseloom/activation.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/shared/cpu/amx/begin.h"
namespace {
#include "kernels/shared/cpu/amx/tiles.h"
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx512/vector.h"
#include "kernels/shared/cpu/activation-inl.h"
#include "kernels/block_attention/cpu/generic/mask-inl.h"
#include "kernels/block_attention/cpu/amx/forward-inl.h"
}  // namespace
#include "kernels/shared/cpu/end.h"
// clang-format on

namespace sparseloom::kernels::cpu {
static constinit Runs softmax_runs{"amx_softmax"};

const AttentionOps& attention_amx() noexcept {
  static const AttentionOps ops{&softmax_runs, amx::forward_tile, nullptr, nullptr};
  return ops;
}
}  // namespace sparseloom::kernels::cpu

#endif
