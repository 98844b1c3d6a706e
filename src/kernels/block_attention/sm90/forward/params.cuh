// Tiles, parameters and shared memory of the forward kernel.
//
//   unit   64 keys: a block of 64, or half of one of 128
//   step   the keys that are multiplied at one time: kUnits units
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/block_attention/cuda/work.cuh"
#include "kernels/block_attention/sm90/operands/element.cuh"
#include "kernels/block_attention/sm90/operands/order.h"
#include "kernels/shared/ptx/sm90/registers.cuh"

namespace sparseloom::kernels::cuda::attention {

/// A team computes one block of queries at a time: a consumer warpgroup for each 64, and a producer warp.
/// With blocks of 64, three teams of a thread block walk over lists of their own, and the softmax of one runs
/// beside the products of the others; with blocks of 128 the two warpgroups of the only team take turns.
/// Rejected for 64: three thread blocks on a multiprocessor. Their 128 registers a thread do not hold the
/// scores of a step beside the weights of the last.
template <class Element_, int kHeadDim_, int kQBlock_>
struct ForwardTile {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_, kQueries = kQBlock_;
  static constexpr int kGroups = kQueries / 64;  // consumer warpgroups of a team
  static constexpr int kTeams = kGroups == 1 ? 3 : 1;
  static constexpr int kConsumers = kGroups * kTeams;
  static constexpr int kUnits = kGroups, kKeys = 64 * kUnits;
  static constexpr int kTileBytes = kKeys * kHeadDim * 2;  // of K or V
  static constexpr int kQBytes = kQueries * kHeadDim * 2;
  // Tiles whose queries are in shared memory at one time. A single team has nothing to compute while queries
  // are on their way; of three, another one has.
  static constexpr int kQBuffers = kTeams == 1 ? 2 : 1;
  static constexpr int kSlots = (kTeams == 1 ? 5 : 3) * 128 / kHeadDim;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 152 : 232;
  static constexpr int kProducerRegisters = kConsumers == 3 ? 56 : 40;
  static constexpr int kSumsO = kHeadDim / 2, kSumsS = kKeys / 2;  // registers of a thread
};

/// The results of parts: [splits][rows], and of `out` head_dim numbers a row. Rows are those of lse.
struct Parts {
  float *lse, *out;
  std::int64_t rows;
};

struct ForwardParams {
  CUtensorMap q, k, v;
  Common common;
  std::int32_t kv_block;
  void* out;
  std::int64_t out_batch, out_head, out_token;  // in elements
  float* lse;
  std::int32_t q_tiles;  // blocks of queries of a head
  // Parts of each list. With more than one, tile t is part t / tiles of tile t % tiles, and results go to
  // `parts`.
  std::int32_t splits, tiles;
  Parts parts;
  TileOrder order;
};

/// Of a team.
template <class T>
struct TeamStorage {
  alignas(1024) std::byte q[T::kQBuffers][T::kQBytes];  // later the output
  alignas(1024) std::byte ring[T::kSlots][T::kTileBytes];
  alignas(8) std::uint64_t full[T::kSlots], empty[T::kSlots], q_full[T::kQBuffers], q_empty[T::kQBuffers];
  std::int32_t first_key[T::kSlots][T::kUnits];  // of each unit, with Lists::kPartial; of K alone
  // The tile of each q, as the producer read it: consumers, which would have to wait for order, counts and
  // entries in turn between two tiles, find it here.
  Work work[T::kQBuffers];
};

template <class T>
struct ForwardStorage {
  TeamStorage<T> teams[T::kTeams];
};

}  // namespace sparseloom::kernels::cuda::attention
