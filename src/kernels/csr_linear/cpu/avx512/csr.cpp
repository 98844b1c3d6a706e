// avx512_lanes: sixteen lanes of fp32.
#if defined(__x86_64__)

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/check.h"
#include "kernels/csr_linear/cpu/lanes.h"
#include "kernels/csr_linear/cpu/single.h"
#include "kernels/csr_linear/cpu/tasks.h"
#include "kernels/shared/cpu/cell.h"
#include "kernels/shared/cpu/intrinsics.h"
#include "kernels/shared/cpu/tile.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/shared/cpu/avx512/begin.h"
namespace {
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx512/vector.h"
#include "kernels/shared/cpu/chain-inl.h"
#include "kernels/csr_linear/cpu/generic/lanes-inl.h"
// clang-format on
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs lanes_runs{"avx512_lanes"};

const LanesOps kCsrLanesAvx512{&lanes_runs,           avx512::kLanes,   avx512::pack_lanes,
                               avx512::forward_lanes, avx512::dx_lanes, avx512::write_dx_lanes,
                               avx512::dw_lanes};
}  // namespace sparseloom::kernels::cpu

#endif
