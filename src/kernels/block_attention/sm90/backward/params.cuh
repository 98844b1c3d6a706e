// Tiles, parameters and shared memory of the backward kernel.
//
//   unit   64 queries: a block of 64, or half of one of 128; the queries of a step
//   stats  of a unit: see cuda/stats.cuh
//   place  a unit's number in stats and sums of dq, where each sequence begins a unit of its own
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/block_attention/cuda/sequence.cuh"
#include "kernels/block_attention/sm90/operands/element.cuh"
#include "kernels/block_attention/sm90/operands/order.h"
#include "kernels/shared/ptx/sm90/registers.cuh"

namespace sparseloom::kernels::cuda::attention {

/// A team computes dk and dv of one block of keys at a time, a consumer warpgroup for each 64 keys. Two teams
/// with blocks of 64 keys, one with 128.
template <class Element_, int kHeadDim_, int kKvBlock_>
struct BackwardTile {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_, kKeys = kKvBlock_;
  static constexpr int kGroups = kKeys / 64, kTeams = 2 / kGroups, kConsumers = 2;
  static constexpr int kKvBytes = kKeys * kHeadDim * 2;  // of K or V
  static constexpr int kUnitBytes = 64 * kHeadDim * 2;   // of Q or dO
  // Tiles whose K and V are in shared memory at one time: see ForwardTile::kQBuffers.
  static constexpr int kKvBuffers = kTeams == 1 ? 2 : 1;
  static constexpr int kStages = kTeams == 2 ? (kHeadDim == 64 ? 3 : 2) : 3;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kConsumerRegisters = 224, kProducerRegisters = 56;
  static constexpr int kSums = kHeadDim / 2;  // of dk or dv: registers of a thread
};

inline constexpr int kStatsBytes = 2 * 64 * 4;

struct BackwardParams {
  CUtensorMap q, k, v, dout;
  Common common;  // its lists are those of keys
  std::int32_t q_block;
  std::int32_t kv_tiles;  // blocks of keys of a head
  TileOrder order;
  std::int32_t kv_heads, places;  // places of a head, or of a batch and head without starts
  const float* stats;             // [batch and head][places][2][64]
  void *dk, *dv;
  std::int64_t dk_strides[3], dv_strides[3];  // batch, head, token
};

template <class T>
struct BackwardTeam {
  alignas(1024) std::byte k[T::kKvBuffers][T::kKvBytes];  // later dk
  alignas(1024) std::byte v[T::kKvBuffers][T::kKvBytes];  // later dv
  alignas(1024) std::byte q[T::kStages][T::kUnitBytes];
  alignas(1024) std::byte dout[T::kStages][T::kUnitBytes];
  alignas(128) float stats[T::kStages][2][64];
  alignas(8) std::uint64_t full[T::kStages], empty[T::kStages], kv_full[T::kKvBuffers],
      kv_empty[T::kKvBuffers];
  // Of a stage: its first query, with kPartial; its place, or -1 behind the sequence; whether some of its
  // pairs do not meet.
  std::int32_t query[T::kStages], place[T::kStages];
  bool masked[T::kStages];
  // Of K and V: the tile, or -1 after the last one; its units of all query heads.
  std::int32_t tile[T::kKvBuffers], units[T::kKvBuffers];
};

template <class T>
struct BackwardStorage {
  BackwardTeam<T> teams[T::kTeams];
};

}  // namespace sparseloom::kernels::cuda::attention
