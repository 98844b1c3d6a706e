// avx2_lanes and avx2_single: eight lanes of fp32.
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
#include "kernels/shared/cpu/avx2/begin.h"
namespace {
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx2/vector.h"
#include "kernels/shared/cpu/chain-inl.h"
#include "kernels/csr_linear/cpu/generic/lanes-inl.h"
#include "kernels/csr_linear/cpu/avx2/single-inl.h"
// clang-format on
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs lanes_runs{"avx2_lanes"}, single_runs{"avx2_single"};

const LanesOps kCsrLanesAvx2{&lanes_runs,    avx2::kLanes,         avx2::pack_lanes, avx2::forward_lanes,
                             avx2::dx_lanes, avx2::write_dx_lanes, avx2::dw_lanes};
const SingleOps kCsrSingleAvx2{&single_runs,    avx2::widen_single,    avx2::forward_single,
                               avx2::dx_single, avx2::write_dx_single, avx2::dw_single};
}  // namespace sparseloom::kernels::cpu

#endif
