// A consumer warpgroup of the backward kernel: dk and dv of 64 keys.
//
//   S^T = K Q^T, dP^T = V dO^T       [64 keys, 64 queries] in registers
//   P^T = exp2(scale log2(e) S^T - stats), dS^T = P^T (dP^T - delta)
//   dv += P^T dO, dk += dS^T Q       with P^T and dS^T from registers
//
// dq is computed by dq/kernel.cuh. Rejected: dS passed through shared memory, and dq = dS K added to sums in
// memory beside these products (five for seven). With random lists that took .93 to 1.2 of the time, but with
// a band, as trained models have it, 1.28: all keys of a neighbourhood add to the same queries (an H200,
// blocks of 128).
#pragma once

#include "kernels/block_attention/cuda/key_work.cuh"
#include "kernels/block_attention/sm90/backward/params.cuh"
#include "kernels/block_attention/sm90/operands/copy_tokens.cuh"
#include "kernels/block_attention/sm90/operands/element.cuh"
#include "kernels/block_attention/sm90/operands/registers.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/opaque.cuh"
#include "kernels/shared/ptx/sm90/named_barrier.cuh"

namespace sparseloom::kernels::cuda::attention {

/// sums[64 keys][64 queries] = a b^T over head_dim, queued as one group. `a`: rows of a tile of kKeys.
template <class T>
__device__ __forceinline__ void multiply_by_queries(float (&sums)[32], std::uint32_t a, std::uint32_t b) {
  ptx::wgmma_fence();
#pragma unroll
  for (int d = 0; d < T::kHeadDim / 16; ++d) {
    const std::uint32_t within = d % 4 * 32;
    T::Element::template mma<false, false>(
        sums, kKMajorTile + ptx::wgmma_address(a + d / 4 * T::kKeys * 128 + within),
        kKMajorTile + ptx::wgmma_address(b + d / 4 * 64 * 128 + within), d > 0);
  }
  ptx::wgmma_commit();
}

/// sums[64 keys][head_dim] += a b, a from registers and b a unit of queries, queued as one group.
template <class T>
__device__ __forceinline__ void add_queries(float (&sums)[T::kSums], const std::uint32_t (&a)[4][4],
                                            std::uint32_t b) {
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k)
    T::Element::mma_rs(sums, a[k], kMnMajorTile<64> + ptx::wgmma_address(b + k * 16 * 128));
  ptx::wgmma_commit();
}

/// All consumers of a team meet.
template <class T>
__device__ __forceinline__ void meet(int team) {
  ptx::named_barrier_sync<T::kGroups * 128>(1 + team);
}

/// The units of the tile whose K and V are in this buffer.
template <class T>
__device__ __forceinline__ void add_units(const BackwardParams& params, BackwardTeam<T>& shared,
                                          unsigned buffer, int team, int group, unsigned& turn,
                                          float (&dk)[T::kSums], float (&dv)[T::kSums]) {
  const Pipeline pipeline(shared.full, shared.empty);
  const float scale_log2 = params.common.scale * 1.4426950408889634f;
  const int units = shared.units[buffer];
  const std::uint32_t k = ptx::shared_address(shared.k[buffer]), v = ptx::shared_address(shared.v[buffer]);
  const int lane = threadIdx.x % 32, thread = threadIdx.x % 128;
  // Computed again where it is used: in registers throughout, it would push out sums.
  const auto work_again = [&] {
    int tile = shared.tile[buffer];
    ptx::opaque(tile);
    return KeyWork(params, tile, T::kKeys);
  };
#pragma unroll 1
  for (int unit = 0; unit < units; ++unit, ++turn) {
    const StageOf<T::kStages> stage(turn);
    pipeline.wait(stage.index, stage.parity);
    const std::int32_t place = shared.place[stage.index];
    const bool masked = shared.masked[stage.index];
    std::byte* const q_tile = shared.q[stage.index];
    std::byte* const dout_tile = shared.dout[stage.index];
    if (masked && params.common.q_starts != nullptr) {
      const int kept = work_again().sequence.q_tokens - (shared.query[stage.index] & ~Lists::kPartial);
      zero_tokens<T::kHeadDim, 64, T::kGroups * 128>(q_tile, kept, group * 128 + thread);
      zero_tokens<T::kHeadDim, 64, T::kGroups * 128>(dout_tile, kept, group * 128 + thread);
      ptx::fence_proxy_async();
      meet<T>(team);
    }
    if (place < 0) {  // all of it behind the end
      meet<T>(team);
      pipeline.release(stage.index);
      continue;
    }
    const std::uint32_t q = ptx::shared_address(q_tile), dout = ptx::shared_address(dout_tile);
    float p[32], dp[32];
    std::uint32_t operand_p[4][4], operand_ds[4][4];
    multiply_by_queries<T>(p, k + group * 64 * 128, q);
    multiply_by_queries<T>(dp, v + group * 64 * 128, dout);
    ptx::wgmma_wait<1>();
    ptx::pin(p);
    if (masked) mask_scores(p, shared.query[stage.index], params.common, work_again(), group);
    const float2* const lse = reinterpret_cast<const float2*>(shared.stats[stage.index][0]) + lane % 4;
    const float2* const delta = reinterpret_cast<const float2*>(shared.stats[stage.index][1]) + lane % 4;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 subtracted = lse[4 * j];
      p[4 * j] = ptx::ex2_approx(p[4 * j] * scale_log2 - subtracted.x);
      p[4 * j + 1] = ptx::ex2_approx(p[4 * j + 1] * scale_log2 - subtracted.y);
      p[4 * j + 2] = ptx::ex2_approx(p[4 * j + 2] * scale_log2 - subtracted.x);
      p[4 * j + 3] = ptx::ex2_approx(p[4 * j + 3] * scale_log2 - subtracted.y);
    }
    ptx::wgmma_wait<0>();
    ptx::pin(dp);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 subtracted = delta[4 * j];
      dp[4 * j] = p[4 * j] * (dp[4 * j] - subtracted.x);
      dp[4 * j + 1] = p[4 * j + 1] * (dp[4 * j + 1] - subtracted.y);
      dp[4 * j + 2] = p[4 * j + 2] * (dp[4 * j + 2] - subtracted.x);
      dp[4 * j + 3] = p[4 * j + 3] * (dp[4 * j + 3] - subtracted.y);
    }
    // Both become operands before the first product: dv beside the computation of dS would need 32 registers
    // more than there are.
    to_operand<typename T::Element>(operand_p, p);
    to_operand<typename T::Element>(operand_ds, dp);
    // Without a barrier here ptxas begins the next unit beside these products, and runs out of registers.
    ptx::named_barrier_sync<128>(4 + static_cast<int>(threadIdx.x / 128));
    add_queries<T>(dv, operand_p, dout);
    add_queries<T>(dk, operand_ds, q);
    ptx::wgmma_wait<0>();
    ptx::pin(dk);
    ptx::pin(dv);
    ptx::keep(operand_p);
    ptx::keep(operand_ds);
    pipeline.release(stage.index);
  }
}

}  // namespace sparseloom::kernels::cuda::attention
