// avx2_decode: see decode.h.
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
#include "kernels/shared/cpu/avx2/begin.h"
namespace {
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx2/vector.h"
#include "kernels/shared/cpu/chain-inl.h"
#include "kernels/bsr_linear/cpu/generic/dot-inl.h"
#include "kernels/bsr_linear/cpu/generic/decode_forward-inl.h"
#include "kernels/bsr_linear/cpu/generic/decode_dx-inl.h"
// clang-format on
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs decode_runs{"avx2_decode"};
const DecodeOps kAvx2Decode = {&decode_runs, avx2::kLanes, avx2::choose_decode, avx2::dx_strip};
}  // namespace sparseloom::kernels::cpu

#endif
