// amx_softmax's own code by emulated tiles, where there is no AMX, against sums element by element.
#if defined(__x86_64__)

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/block_attention/cpu/tile.h"
#include "kernels/shared/cpu/cell.h"
#include "kernels/shared/cpu/intrinsics.h"
#include "ops/attention_case.h"
#include "runtime/cpu.h"
#include "sparseloom/activation.h"
#include "sparseloom/generic/half.h"

// clang-format off
#include "kernels/shared/cpu/amx/begin.h"
namespace {
#include "kernels/amx_emulated_tiles.h"
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx512/vector.h"
#include "kernels/shared/cpu/activation-inl.h"
#include "kernels/block_attention/cpu/generic/mask-inl.h"
#include "kernels/block_attention/cpu/amx/forward-inl.h"
}  // namespace
#include "kernels/shared/cpu/end.h"
// clang-format on

namespace sparseloom::testing {
namespace {

using core::Bf16;

std::vector<Bf16> rounded(std::vector<float>& numbers) {
  std::vector<Bf16> to;
  for (float& x : numbers) {
    to.push_back(core::to_bf16(x));
    x = core::to_f32(to.back());
  }
  return to;
}

TEST(AttentionAmx, EmulatedTilesGiveTheSumsElementByElement) {
  if (!runtime::active_isa().has(runtime::Isa::avx512_bf16)) GTEST_SKIP() << "packs by AVX-512 BF16";
  for (AttentionCase c : {AttentionCase{128, 128, 64, 64, false},
                          {100, 150, 64, 64, true},
                          {150, 100, 72, 64, true},
                          {130, 200, 128, 128, false},
                          {1, 70, 64, 64, false, 2, 1},
                          {20, 64, 5, 64, true, 1, 1}}) {
    const std::vector<Bf16> q = rounded(c.q), k = rounded(c.k), v = rounded(c.v);
    std::vector<Bf16> out(c.q.size());
    const AttentionAnswer exact(c);
    block_attention::Args args = c.args();
    args.problem = c.problem;
    args.q.data = q.data(), args.k.data = k.data(), args.v.data = v.data(), args.out.data = out.data();
    const block_attention::Problem& p = c.problem;
    for (std::int64_t batch = 0; batch < p.batch; ++batch)
      for (std::int64_t head = 0; head < p.heads; ++head)
        for (std::int64_t first = 0; first < p.q_tokens; first += kernels::cpu::kTileQueries) {
          const std::int64_t rows = std::min(kernels::cpu::kTileQueries, p.q_tokens - first);
          kernels::amx::forward_tile({args, batch, head, first / p.q_block, first, rows});
          for (const auto& tile : kernels::amx::tiles) EXPECT_EQ(tile.rows, 0) << "kept its tiles";
        }
    for (std::size_t i = 0; i < out.size(); ++i)
      ASSERT_NEAR(core::to_f32(out[i]), exact.out[i], 0.02) << p.q_tokens << " at " << i;
    for (std::size_t i = 0; i < c.lse.size(); ++i)
      if (!std::isinf(exact.lse[i])) {
        ASSERT_NEAR(c.lse[i], exact.lse[i], 1e-4) << p.q_tokens << " at " << i;
      } else {
        ASSERT_EQ(c.lse[i], exact.lse[i]);
      }
  }
}

}  // namespace
}  // namespace sparseloom::testing

#endif
