// Tiles, parameters and shared memory of the kernel that computes dq.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/block_attention/cuda/work.cuh"
#include "kernels/block_attention/sm90/operands/element.cuh"
#include "kernels/block_attention/sm90/operands/order.h"
#include "kernels/shared/ptx/sm90/registers.cuh"

namespace sparseloom::kernels::cuda::attention {

/// A team computes dq of one block of queries at a time, a consumer warpgroup for each 64. Two teams with
/// blocks of 64 queries, one with 128.
template <class Element_, int kHeadDim_, int kQBlock_>
struct DqTile {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_, kQueries = kQBlock_;
  static constexpr int kGroups = kQueries / 64, kTeams = 2 / kGroups, kConsumers = 2;
  static constexpr int kQBytes = kQueries * kHeadDim * 2;  // of Q or dO
  static constexpr int kUnitBytes = 64 * kHeadDim * 2;     // of K or V
  static constexpr int kStages = (kTeams == 2 ? 2 : 4) * 128 / kHeadDim;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kConsumerRegisters = 224, kProducerRegisters = 56;
  static constexpr int kSums = kHeadDim / 2;  // registers of a thread
};

struct DqParams {
  CUtensorMap q, k, v, dout;
  Common common;  // its lists are those of queries
  std::int32_t kv_block;
  std::int32_t q_tiles;  // blocks of queries of a head
  std::int32_t places;   // as in BackwardParams, with its stats
  TileOrder order;
  const float* stats;
  void* dq;
  std::int64_t dq_strides[3];  // batch, head, token
};

template <class T>
struct DqTeam {
  alignas(1024) std::byte q[T::kQBytes];  // later dq
  alignas(1024) std::byte dout[T::kQBytes];
  alignas(1024) std::byte k[T::kStages][T::kUnitBytes];
  alignas(1024) std::byte v[T::kStages][T::kUnitBytes];
  alignas(8) std::uint64_t full[T::kStages], empty[T::kStages], q_full, q_empty;
  std::int32_t first_key[T::kStages];  // with Lists::kPartial
  Work work;                           // of q: see TeamStorage
};

template <class T>
struct DqStorage {
  DqTeam<T> teams[T::kTeams];
};

}  // namespace sparseloom::kernels::cuda::attention
