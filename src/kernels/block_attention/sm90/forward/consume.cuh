// A consumer warpgroup: the output of 64 queries.
#pragma once

#include "kernels/block_attention/cuda/softmax.cuh"
#include "kernels/block_attention/cuda/work.cuh"
#include "kernels/block_attention/sm90/forward/params.cuh"
#include "kernels/block_attention/sm90/operands/copy_tokens.cuh"
#include "kernels/block_attention/sm90/operands/element.cuh"
#include "kernels/block_attention/sm90/operands/registers.cuh"
#include "kernels/shared/pipeline/pipeline.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/sm90/named_barrier.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"

namespace sparseloom::kernels::cuda::attention {

/// scores = q k^T, queued as one group.
template <class T>
__device__ __forceinline__ void multiply_qk(float (&scores)[T::kSumsS], std::uint32_t q, std::uint32_t k) {
  ptx::wgmma_fence();
#pragma unroll
  for (int d = 0; d < T::kHeadDim / 16; ++d) {
    const std::uint32_t within = d % 4 * 32;
    T::Element::template mma<false, false>(
        scores, kKMajorTile + ptx::wgmma_address(q + d / 4 * T::kQueries * 128 + within),
        kKMajorTile + ptx::wgmma_address(k + d / 4 * T::kKeys * 128 + within), d > 0);
  }
  ptx::wgmma_commit();
}

/// out += p v, queued as one group.
template <class T>
__device__ __forceinline__ void multiply_pv(float (&out)[T::kSumsO],
                                            const std::uint32_t (&p)[T::kSumsS / 8][4], std::uint32_t v) {
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < T::kKeys / 16; ++k)
    T::Element::mma_rs(out, p[k], kMnMajorTile<T::kKeys> + ptx::wgmma_address(v + k * 16 * 128));
  ptx::wgmma_commit();
}

/// Zeroes V behind the sequence's end. All consumers of the team call it together. `keys`: the first of each
/// unit.
template <class T>
__device__ __forceinline__ void zero_behind_end(std::byte* v, const std::int32_t (&keys)[T::kUnits],
                                                int kv_tokens, int team, int thread) {
#pragma unroll
  for (int unit = 0; unit < T::kUnits; ++unit)
    zero_tokens<T::kHeadDim, T::kKeys, T::kGroups * 128>(v + unit * 64 * 128, kv_tokens - keys[unit], thread);
  ptx::fence_proxy_async();
  ptx::named_barrier_sync<T::kGroups * 128>(8 + team);
}

/// `q`: the warpgroup's queries, which have arrived.
template <class T>
__device__ __forceinline__ void consume(const ForwardParams& params, TeamStorage<T>& shared, const Work& work,
                                        int team, int group, std::uint32_t q, unsigned& turn,
                                        float (&out)[T::kSumsO], Running& running) {
  const auto& [sequence, entries, units, first_query, head, batch, part] = work;
  const int steps = (units + T::kUnits - 1) / T::kUnits;
  const Pipeline pipeline(shared.full, shared.empty);
  const Mask mask(params.common, sequence, batch, first_query + group * 64);
  const float scale_log2 = params.common.scale * kLog2E;
  const std::uint32_t ring = ptx::shared_address(shared.ring);
  const bool leads = threadIdx.x % 32 == 0;
  const bool ragged = params.common.q_starts != nullptr;
  float scores[T::kSumsS];
  std::uint32_t p[T::kSumsS / 8][4];
  float factors[2];
  std::int32_t keys[T::kUnits], v_keys[T::kUnits];  // of the step's K, and of the one before

  // The two warpgroups of a tile issue their products in turn, so that the softmax of one runs beside the
  // products of the other (FlashAttention-3, Shah et al. 2024, section 3.1).
  const auto my_turn = [&] {
    if constexpr (T::kGroups == 2) ptx::named_barrier_sync<256>(1 + group);
  };
  const auto your_turn = [&] {
    if constexpr (T::kGroups == 2) ptx::named_barrier_arrive<256>(2 - group);
  };
  const auto wait_for_k = [&](const StageOf<T::kSlots>& slot) {
    pipeline.wait(slot.index, slot.parity);
#pragma unroll
    for (int unit = 0; unit < T::kUnits; ++unit) {
      v_keys[unit] = keys[unit] & ~Lists::kPartial;
      keys[unit] = __shfl_sync(0xffffffff, leads ? shared.first_key[slot.index][unit] : 0, 0);
    }
  };
  const auto mask_scores = [&] {
#pragma unroll
    for (int unit = 0; unit < T::kUnits; ++unit)
      mask.apply(scores + unit * 32, keys[unit], params.common, sequence, batch);
  };
  // Before a turn begins: the warpgroups meet in it.
  const auto repair_v = [&](const StageOf<T::kSlots>& slot) {
    if (!ragged || v_keys[T::kUnits - 1] + 64 <= sequence.kv_tokens) return;
    pipeline.wait(slot.index, slot.parity);
    zero_behind_end<T>(shared.ring[slot.index], v_keys, sequence.kv_tokens, team,
                       group * 128 + static_cast<int>(threadIdx.x % 128));
  };

  {
    const StageOf<T::kSlots> k(turn++);
    wait_for_k(k);
    my_turn();
    multiply_qk<T>(scores, q, ring + k.index * T::kTileBytes);
    your_turn();
    ptx::wgmma_wait<0>();
    ptx::pin(scores);
    if (leads) pipeline.release(k.index);
    mask_scores();
    exponentiate(scores, running, factors, scale_log2);
    to_operand<typename T::Element>(p, scores);
  }
#pragma unroll 1
  for (int step = 1; step < steps; ++step) {
    const StageOf<T::kSlots> k(turn), v(turn + 1);
    turn += 2;
    wait_for_k(k);
    repair_v(v);
    my_turn();
    multiply_qk<T>(scores, q, ring + k.index * T::kTileBytes);
    pipeline.wait(v.index, v.parity);
    multiply_pv<T>(out, p, ring + v.index * T::kTileBytes);
    your_turn();
    ptx::wgmma_wait<1>();
    ptx::pin(scores);
    if (leads) pipeline.release(k.index);
    mask_scores();
    exponentiate(scores, running, factors, scale_log2);
    ptx::wgmma_wait<0>();
    ptx::pin(out);
    ptx::keep(p);
    if (leads) pipeline.release(v.index);
#pragma unroll
    for (int i = 0; i < T::kSumsO; ++i) out[i] *= factors[i / 2 % 2];
    to_operand<typename T::Element>(p, scores);
  }
  const StageOf<T::kSlots> v(turn++);
#pragma unroll
  for (int unit = 0; unit < T::kUnits; ++unit) v_keys[unit] = keys[unit] & ~Lists::kPartial;
  repair_v(v);
  pipeline.wait(v.index, v.parity);
  my_turn();
  multiply_pv<T>(out, p, ring + v.index * T::kTileBytes);
  your_turn();
  ptx::wgmma_wait<0>();
  ptx::pin(out);
  ptx::keep(p);
  if (leads) pipeline.release(v.index);
}

}  // namespace sparseloom::kernels::cuda::attention
