#if defined(__x86_64__)

#include "kernels/amx_emulated.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/shared/cpu/intrinsics.h"
#include "sparseloom/generic/half.h"

// clang-format off
#include "kernels/shared/cpu/amx/begin.h"
namespace {
#include "kernels/amx_emulated_tiles.h"
#include "kernels/bsr_linear/cpu/amx/tile-inl.h"
}  // namespace
#include "kernels/shared/cpu/end.h"
// clang-format on

namespace sparseloom::testing {

const kernels::cpu::TileOps kEmulatedTile = kernels::amx::kOps;

bool emulated_tiles_in_use() {
  return std::any_of(kernels::amx::tiles.begin(), kernels::amx::tiles.end(),
                     [](const auto& tile) { return tile.rows > 0; });
}

float emulated_dot(const std::uint16_t* a, const std::uint16_t* b, float old) {
  using namespace kernels::amx;
  TileConfig config;
  config.rows[0] = config.rows[1] = 1, config.rows[2] = 16;
  config.row_bytes[0] = 4, config.row_bytes[1] = 64, config.row_bytes[2] = 4;
  tiles_begin(config);
  tile_load<0>(&old, 4);
  tile_load<1>(a, 64);
  tile_load<2>(b, 4);
  tile_dot<0, 1, 2>();
  tile_store<0>(&old, 4);
  tiles_end();
  return old;
}

const kernels::Kernel& emulated_amx_kernel() {
  using namespace kernels;
  const auto propose = [](const Problem& problem, const plan::Machine& machine,
                          Proposals<Linear>& out) -> Refusal {
    if (!machine.isa.has(runtime::Isa::avx512_bf16)) return "needs avx512_bf16";
    if (problem.dtype != DType::bf16) return "multiplies bf16 only";
    out.add({{},
             cpu::predict_tile_us(problem, 0),
             problem.direction == Direction::dw ? cpu::tile_dw_workspace(problem)
                                                : cpu::tile_workspace(problem)});
    return {};
  };
  const auto launch = [](const MatmulArgs& args, const Schedule&, const Executor& executor) {
    args.direction == Direction::dw ? cpu::run_tile_dw(kEmulatedTile, args, executor)
                                    : cpu::run_tile(kEmulatedTile, args, executor);
    return 0;
  };
  static const Kernel kernel{{"amx_tile_emulated", Placement::cpu, propose, launch},
                             runtime::Isa::avx512_bf16};
  return kernel;
}

}  // namespace sparseloom::testing

#endif
