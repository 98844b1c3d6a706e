#if defined(__x86_64__)

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/amx_emulated.h"
#include "kernels/shared/cpu/intrinsics.h"
#include "sparseloom/generic/half.h"

// clang-format off
#include "kernels/shared/cpu/amx/begin.h"
namespace {
#include "kernels/amx_emulated_tiles.h"
#include "kernels/bsr_linear/cpu/amx/tile_int8-inl.h"
}  // namespace
#include "kernels/shared/cpu/end.h"
#include "kernels/shared/cost/cost_terms.h"
// clang-format on

namespace sparseloom::testing {

const kernels::cpu::TileOps kEmulatedInt8Tile = kernels::amx::kOps;

bool emulated_int8_tiles_in_use() {
  return std::any_of(kernels::amx::tiles.begin(), kernels::amx::tiles.end(),
                     [](const auto& tile) { return tile.rows > 0; });
}

const kernels::ScaledKernel& emulated_amx_int8_kernel() {
  using namespace kernels;
  const auto propose = [](const ScaledProblem& problem, const plan::Machine& machine,
                          Proposals<Scaled>& out) -> Refusal {
    if (!machine.isa.has(runtime::Isa::avx512_bf16)) return "needs avx512_bf16";
    if (problem.dtype != DType::i8) return "multiplies int8 only";
    const Problem same = forward_of(problem);
    out.add({{}, cpu::predict_tile_us(same, 0), cpu::tile_workspace(same)});
    return {};
  };
  const auto launch = [](const MatmulArgs& args, const Schedule&, const Executor& executor) {
    cpu::run_tile(kEmulatedInt8Tile, args, executor);
    return 0;
  };
  static const ScaledKernel kernel{{"amx_int8_tile_emulated", Placement::cpu, propose, launch},
                                   runtime::Isa::avx512_bf16};
  return kernel;
}

}  // namespace sparseloom::testing

#endif
