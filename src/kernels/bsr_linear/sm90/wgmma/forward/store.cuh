// The consumers' epilogue:
//
//   out = round(act(sums + bias) + residual)
//   pre = round(sums + bias)                    if a gradient needs it
//
// Each warp works on its own. It writes 16 tokens x 128 bytes (less if a block row is narrower) at a time
// into its staging buffers; TMA stores them and clips at the last token and column. The stores run on while
// the next tile is multiplied.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/forward/epilogue_warps.cuh"
#include "kernels/bsr_linear/sm90/wgmma/forward/tile.cuh"
#include "kernels/bsr_linear/sm90/wgmma/forward/walk.cuh"
#include "kernels/shared/epilogue/activation.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/ld.cuh"
#include "kernels/shared/ptx/ldmatrix.cuh"
#include "kernels/shared/ptx/sm90/mbarrier.cuh"
#include "kernels/shared/ptx/sm90/stmatrix.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"

namespace sparseloom::kernels::cuda::wgmma::forward {

/// A thread's accumulators in wgmma's layout. With swap-AB the tokens are N, in one or two halves.
template <class T>
struct SumsOf {
  using Type = float[T::kTokenBlocks][T::kBlockRows][T::kSlice / 2];
};
template <class T>
requires T::kSwapAB struct SumsOf<T> {
  using Type = float[T::kTokenHalves][1][128 / T::kTokenHalves];
};
template <class T>
using Sums = typename SumsOf<T>::Type;

/// A warp's bias of one tile: lane t has columns t, t + 32, and so on. It is fetched before the tile's
/// mainloop, so that the epilogue need not wait for it.
template <class T>
struct Bias {
  typename T::Element::Out::Bits bits[T::kOutputs / 32];
};

/// The scales, fetched before the mainloop as well: lane t has those of outputs t, t + 32, .. and those of
/// tokens t / 4 and t / 4 + 8 of the warp's 16 in each 64. Empty if the operands have no scales.
template <class T, bool kScaled = T::Element::kScaled>
struct Scales {};
template <class T>
struct Scales<T, true> {
  float out[T::kOutputs / 32], x[T::kTokenBlocks][2];
};

template <class T>
__device__ __forceinline__ Bias<T> fetch_bias(const Params& params, const Place& place) {
  using Bits = typename T::Element::Out::Bits;
  Bias<T> bias;
#pragma unroll
  for (int i = 0; i < T::kOutputs / 32; ++i) {
    const std::int32_t column =
        in_matrix<T>(params, place.output + i * 32) + static_cast<int>(threadIdx.x % 32);
    const void* from = T::kGlu && i * 32 / T::kSlice % 2 == 1 ? params.factor_bias : params.bias;
    const bool exists = from != nullptr && column < params.out_width;
    bias.bits[i] = exists ? ptx::ld_global(static_cast<const Bits*>(from) + column) : Bits{0};
  }
  return bias;
}

template <class T>
__device__ __forceinline__ Scales<T> fetch_scales(const Params& params, const Place& place, int first_row) {
  Scales<T> scales;
  if constexpr (T::Element::kScaled) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < T::kOutputs / 32; ++i) {
      const std::int32_t output =
          min(in_matrix<T>(params, place.output + i * 32) + lane, params.out_width - 1);
      const std::int32_t column = params.out_scale_each ? output : 0;
      scales.out[i] = ptx::ld_global(params.out_scale + column);
    }
#pragma unroll
    for (int i = 0; i < T::kTokenBlocks * 2; ++i) {
      const std::int32_t row = place.token + first_row + i / 2 * 64 + lane / 4 + i % 2 * 8;
      scales.x[i / 2][i % 2] =
          ptx::ld_global(params.x_scale + (params.x_scale_each ? min(row, params.tokens - 1) : 0));
    }
  }
  return scales;
}

/// Whether the residual's boxes are requested ahead, one at a time. They are not if boxes of `pre` alternate
/// with them in the staging buffers, nor in the narrow tile, whose SM runs another thread block meanwhile and
/// which has no register left.
template <class T>
__device__ __forceinline__ bool asks_ahead(const Params& params) {
  return T::kAddsResidual && T::kBlocksPerSm == 1 && !params.store_pre;
}

/// Starts a copy of the residual's box into the staging buffer that the outputs will overwrite. One copy is
/// in flight at a time, and the first of a tile runs while the tile is multiplied. (Loads straight into
/// registers spilled hundreds of them.)
template <class T>
__device__ __forceinline__ void ask_residual(const Params& params, std::uint32_t barrier,
                                             std::uint32_t buffer, const OutBox<T>& box) {
  if (!ptx::elect_lane()) return;
  ptx::mbarrier_arrive_expect_tx(barrier, T::kStoreBytes);
  ptx::tma_load_2d(buffer, &params.residual, box.column, box.row, barrier);
}

/// Waits until box n of the tile has arrived.
template <class T>
__device__ __forceinline__ void await_residual(ResidualBarrier& residual, int n) {
  const std::uint32_t barrier = ptx::shared_address(&residual.barrier);
  if constexpr (OutBox<T>::kCount % 2 == 0) {
    ptx::mbarrier_wait(barrier, n % 2);
  } else {
    const unsigned phase = residual.phase;
    ptx::mbarrier_wait(barrier, phase);
    __syncwarp();
    if (threadIdx.x % 32 == 0) residual.phase = phase ^ 1;
  }
}

/// The address of this lane's row of fragments 2 i and 2 i + 1 in a box of a 16-bit type, for stmatrix and
/// ldmatrix.
template <class T>
__device__ __forceinline__ std::uint32_t pair_row(std::uint32_t box, int i) {
  const int lane = threadIdx.x % 32;
  const int row = lane % 16, chunk = i * 2 + lane / 16,
            swizzle = T::kStoreRowBytes == 128 ? row % 8 : row / 2 % 4;
  return box + row * T::kStoreRowBytes + (chunk ^ swizzle) * 16;
}

/// y += the residual's values from the same positions of a 16-bit box.
template <class T>
__device__ __forceinline__ void add_fragments(std::uint32_t box, int i, float (&y)[8]) {
  std::uint32_t pairs[4];
  ptx::ldmatrix_x4(pairs, pair_row<T>(box, i));
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    y[2 * pair] += T::Element::Out::to_f32(static_cast<std::uint16_t>(pairs[pair]));
    y[2 * pair + 1] += T::Element::Out::to_f32(static_cast<std::uint16_t>(pairs[pair] >> 16));
  }
}

/// Writes two fragments of 16 rows x 8 columns into a box, whose 16-byte chunks are permuted as TMA's swizzle
/// requires: fragments 2 i and 2 i + 1 of a 16-bit type, i and i + 2 of fp32.
template <class T>
__device__ __forceinline__ void stage_fragments(std::uint32_t box, int i, const float (&y)[8]) {
  if constexpr (T::kOutBytes == 2) {
    std::uint32_t pairs[4];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) pairs[pair] = T::Element::Out::pair(y[2 * pair], y[2 * pair + 1]);
    ptx::stmatrix_x4(pair_row<T>(box, i), pairs);
  } else {
    // Stores of 8 bytes are served for 16 lanes at a time, which are four rows. Odd rows begin with the other
    // fragment, which avoids bank conflicts.
    const int lane = threadIdx.x % 32, row = lane / 4, quarter = lane % 4;
    const bool odd = row % 2 == 1;
#pragma unroll
    for (int turn = 0; turn < 2; ++turn) {
      const int fragment = odd == (turn == 0) ? i + 2 : i;
      const std::uint32_t to = box + row * 128 + ((fragment * 2 + quarter / 2) ^ row) * 16 + quarter % 2 * 8;
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        const int e = below * 2;
        const float low = odd == (turn == 0) ? y[4 + e] : y[e],
                    high = odd == (turn == 0) ? y[5 + e] : y[1 + e];
        ptx::st_shared_v2_f32(to + below * 8 * 128, low, high);
      }
    }
  }
}

/// The j-th column whose sums a lane holds in box column c, without the lane's own offset 2 (lane % 4).
template <class T>
__device__ constexpr int own_column(int c, int j) {
  return c * T::kStoreColumns + j / 2 * 8 + j % 2;
}

/// Applies scales, bias, activation and residual to the warp's sums and stores them, box by box. With
/// epilogue warps it writes the boxes into the staging and leaves the stores to them.
template <class T, class Function>
__device__ __forceinline__ void store_activated(const Params& params, const Place& place, const Bias<T>& bias,
                                                const Scales<T>& scales, std::uint32_t staging, int first_row,
                                                const Sums<T>& sums, ResidualBarrier& residual,
                                                Function activation) {
  const int lane = threadIdx.x % 32;
  int buffer = 0;
#pragma unroll
  for (int c = 0; c < T::kOutputs / T::kStoreColumns; ++c) {
    const std::int32_t to = in_matrix<T>(params, place.output + c * T::kStoreColumns);
    // Load bias and scales of this lane's columns.
    float shift[T::kStoreColumns / 4] = {};
    if (params.bias != nullptr) {
#pragma unroll
      for (int j = 0; j < T::kStoreColumns / 4; ++j) {
        const float own = T::Element::Out::to_f32(bias.bits[own_column<T>(c, j) / 32]);
        shift[j] = __shfl_sync(0xffffffff, own, own_column<T>(c, j) % 32 + lane % 4 * 2);
      }
    }
    [[maybe_unused]] float factor[T::kStoreColumns / 4];
    if constexpr (T::Element::kScaled) {
#pragma unroll
      for (int j = 0; j < T::kStoreColumns / 4; ++j)
        factor[j] = __shfl_sync(0xffffffff, scales.out[own_column<T>(c, j) / 32],
                                own_column<T>(c, j) % 32 + lane % 4 * 2);
    }
    // Writes the box of one block of 64 tokens, after `function`, and stores it through `map`; `adds` says
    // whether the residual is added.
    const auto put = [&](const CUtensorMap& map, int block, auto function, bool adds) {
      const int n = c * T::kTokenBlocks + block;
      const std::uint32_t box = staging + (T::kHasEpilogueWarps ? n : buffer) * T::kStoreBytes;
      const bool ahead = adds && asks_ahead<T>(params);
      // Wait for a free staging buffer.
      if (!T::kHasEpilogueWarps && !ahead) {
        if (ptx::elect_lane())
          ptx::bulk_wait_read<T::kStagingBuffers - 1>();  // the buffer's last store has read it
        __syncwarp();
      }
      // Wait for the residual's box.
      if constexpr (T::kAddsResidual) {
        if (adds && !ahead)
          ask_residual<T>(params, ptx::shared_address(&residual.barrier), box, {params, place, first_row, n});
        if (adds) await_residual<T>(residual, n);
      }
      // Finish the sums and write them into the box.
#pragma unroll
      for (int i = 0; i < T::kStoreColumns / 16; ++i) {
        float y[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const int within = T::kOutBytes == 2
                                 ? i * 2 + e / 4
                                 : i + e / 4 * 2;  // index among the box's fragments of 8 columns
          const int fragment = c * T::kStoreColumns / 8 + within, column = within * 2 + e % 2;
          constexpr int kPerSlice = T::kSlice / 8;
          // kPairedRows: neighbouring outputs are exchanged back
          const int place = T::kPairedRows && fragment % 2 == 1 ? e % 4 ^ 1 : e % 4;
          const float sum = sums[block][fragment / kPerSlice][fragment % kPerSlice * 4 + place];
          if constexpr (T::Element::kScaled) {
            y[e] = function(fmaf(sum * scales.x[block][e % 4 / 2], factor[column], shift[column]));
          } else {
            y[e] = function(sum + shift[column]);
          }
        }
        if constexpr (T::kAddsResidual) {
          if (adds) add_fragments<T>(box, i, y);
        }
        stage_fragments<T>(box, i, y);
      }
      if constexpr (T::kHasEpilogueWarps) return;
      // Issue the TMA store, and request the residual's next box.
      ptx::fence_proxy_async();
      __syncwarp();
      if (ptx::elect_lane()) {
        ptx::tma_store_2d(&map, to, place.token + first_row + block * 64, box, params.out_policy);
        ptx::bulk_commit();
      }
      buffer = (buffer + 1) % T::kStagingBuffers;
      if constexpr (T::kAddsResidual) {
        if (ahead && n + 1 < OutBox<T>::kCount) {
          if (ptx::elect_lane()) ptx::bulk_wait_read<T::kStagingBuffers - 1>();
          ask_residual<T>(params, ptx::shared_address(&residual.barrier), staging + buffer * T::kStoreBytes,
                          {params, place, first_row, n + 1});
        }
      }
    };
#pragma unroll
    for (int block = 0; block < T::kTokenBlocks; ++block) {
      if constexpr (T::kStoresPre) {
        if (params.store_pre)
          put(
              params.pre, block, [](float v) { return v; }, false);
      }
      put(params.out, block, activation, T::kAddsResidual);
    }
  }
}

/// A pair of results of a gated linear unit, of gates and factors that were rounded as a product of their own
/// would store them.
template <class T, class Function>
__device__ __forceinline__ std::uint32_t glu_of(std::uint32_t gates, std::uint32_t factors,
                                                Function activation) {
  using Out = typename T::Element::Out;
  const auto at = [](std::uint32_t pair, int i) {
    return Out::to_f32(static_cast<std::uint16_t>(pair >> (16 * i)));
  };
  return Out::pair(activation(at(gates, 0)) * at(factors, 0), activation(at(gates, 1)) * at(factors, 1));
}

/// kGlu: stores act(gates) factors of the warp's sums box by box. The tile's block rows 2 i are gates and
/// 2 i + 1 the factors of the same outputs, in the same lanes.
template <class T, class Function>
__device__ __forceinline__ void store_glu(const Params& params, const Place& place, const Bias<T>& bias,
                                          std::uint32_t staging, int first_row, const Sums<T>& sums,
                                          Function activation) {
  static_assert(T::kStoreColumns == T::kSlice, "a box of outputs is a block row");
  constexpr int kShifts = T::kStoreColumns / 4, kPerSlice = T::kSlice / 8;
  const int lane = threadIdx.x % 32;
  int buffer = 0;
#pragma unroll
  for (int pair_of_rows = 0; pair_of_rows < T::kBlockRows / 2; ++pair_of_rows) {
    const int first = 2 * pair_of_rows;
    const std::int32_t to = in_matrix<T>(params, place.output + first * T::kStoreColumns);
    float shift[2][kShifts] = {};
    if (params.bias != nullptr || params.factor_bias != nullptr) {
#pragma unroll
      for (int j = 0; j < 2 * kShifts; ++j) {
        const int column = own_column<T>(first + j / kShifts, j % kShifts);
        shift[j / kShifts][j % kShifts] = __shfl_sync(
            0xffffffff, T::Element::Out::to_f32(bias.bits[column / 32]), column % 32 + lane % 4 * 2);
      }
    }
#pragma unroll
    for (int block = 0; block < T::kTokenBlocks; ++block) {
      const std::uint32_t box = staging + buffer * T::kStoreBytes;
      if (ptx::elect_lane()) ptx::bulk_wait_read<T::kStagingBuffers - 1>();
      __syncwarp();
#pragma unroll
      for (int i = 0; i < T::kStoreColumns / 16; ++i) {
        std::uint32_t pairs[4];
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
          std::uint32_t of[2];
#pragma unroll
          for (int row = 0; row < 2; ++row) {
            const int fragment = i * 2 + pair / 2, column = fragment * 2;
            // kPairedRows: neighbouring outputs are exchanged back
            const int low = pair % 2 * 2, swap = T::kPairedRows && fragment % 2 == 1 ? 1 : 0;
            const float(&slice)[T::kSlice / 2] = sums[block][first + row];
            of[row] = T::Element::Out::pair(
                slice[fragment % kPerSlice * 4 + (low ^ swap)] + shift[row][column],
                slice[fragment % kPerSlice * 4 + (low + 1 ^ swap)] + shift[row][column + 1]);
          }
          pairs[pair] = glu_of<T>(of[0], of[1], activation);
        }
        ptx::stmatrix_x4(pair_row<T>(box, i), pairs);
      }
      ptx::fence_proxy_async();
      __syncwarp();
      if (ptx::elect_lane()) {
        ptx::tma_store_2d(&params.out, to, place.token + first_row + block * 64, box, params.out_policy);
        ptx::bulk_commit();
      }
      buffer = (buffer + 1) % T::kStagingBuffers;
    }
  }
}

/// Calls store with the activation as a function; dx has none.
template <class T, class Store>
__device__ __forceinline__ void with_activation(const Params& params, Store store) {
  if constexpr (T::kIsDx) {
    store([](float v) { return v; });
  } else {
    epilogue::with_activation<T::kOutBytes == 2>(params.activation, store);
  }
}

/// A warp's epilogue. begin() runs before the tile's mainloop and fetches the operands of end(); end() stores
/// the tile.
template <class T>
class WarpStore {
 public:
  __device__ __forceinline__ WarpStore(SharedStorage<T>& shared, int warpgroup)
      : staging_(ptx::shared_address(shared.staging[threadIdx.x / 32])),
        first_row_(warpgroup * (T::kTokens / T::kConsumers) +
                   static_cast<int>(threadIdx.x / 32 % 4) * T::kStoreRows),
        residual_(shared.residual[threadIdx.x / 32]),
        epilogue_queue_(shared) {}

  __device__ __forceinline__ void begin(const Params& params, const Place& place) {
    bias_ = fetch_bias<T>(params, place);
    if constexpr (T::kBlocksPerSm == 1) scales_ = fetch_scales<T>(params, place, first_row_);
    if constexpr (T::kAddsResidual) {
      if (asks_ahead<T>(params)) {
        if (ptx::elect_lane()) ptx::bulk_wait_read<0>();
        ask_residual<T>(params, ptx::shared_address(&residual_.barrier), staging_,
                        {params, place, first_row_, 0});
      }
    }
  }

  __device__ __forceinline__ void end(const Params& params, const Place& place, const Sums<T>& sums) {
    // The narrow tile fetches its scales only here: another thread block multiplies meanwhile, and registers
    // suffice for half as many.
    if constexpr (T::kBlocksPerSm > 1) scales_ = fetch_scales<T>(params, place, first_row_);
    const auto store = [&](auto activation) {
      if constexpr (T::kGlu) {
        store_glu<T>(params, place, bias_, staging_, first_row_, sums, activation);
      } else {
        store_activated<T>(params, place, bias_, scales_, staging_, first_row_, sums, residual_, activation);
      }
    };
    if constexpr (T::kHasEpilogueWarps) {
      epilogue_queue_.begin(threadIdx.x / 32);
      store([](float v) { return v; });
      epilogue_queue_.end(threadIdx.x / 32);
      epilogue_queue_.end_tile();
    } else {
      with_activation<T>(params, store);
    }
  }

 private:
  const std::uint32_t staging_;
  const int first_row_;  // first row within the tile
  ResidualBarrier& residual_;
  EpilogueQueue<T> epilogue_queue_;
  Bias<T> bias_;
  Scales<T> scales_;
};

}  // namespace sparseloom::kernels::cuda::wgmma::forward
