// avx512_decode: see decode.h.
#if defined(__x86_64__)

#include "kernels/cpu/decode.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/intrinsics.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/tile.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/cpu/avx512/begin.h"
namespace {
#include "kernels/cpu/generic/unroll-inl.h"
#include "kernels/cpu/avx2/simd.h"
#include "kernels/cpu/avx512/vector.h"
#include "kernels/cpu/generic/dot-inl.h"
#include "kernels/cpu/generic/decode_forward-inl.h"
#include "kernels/cpu/generic/decode_dx-inl.h"
// clang-format on
}  // namespace
#include "kernels/cpu/avx512/end.h"

namespace sparseloom::kernels::cpu {
const DecodeOps kAvx512Decode = {avx512::kLanes, avx512::choose_decode, avx512::dx_strip};
}  // namespace sparseloom::kernels::cpu

#endif
