// Consumers with swap-AB (kSwapAB): weights are M of the wgmma and tokens are N. A warpgroup multiplies 64
// outputs (a block row of side 64, or half of one of 128) by all 256 tokens of the tile. The two warpgroups
// pass through the same stages, each at its own pace. Sums are stored in boxes of [tokens][outputs], which
// the four warps of a warpgroup fill together, 16 outputs each.
//
// Deferred store (kDeferredStore): the rounded sums wait in registers and are stored during the next tile's
// first products, one box per stage. The end of a tile then takes only the time of rounding.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_linear/sm90/wgmma/forward/store.cuh"
#include "kernels/bsr_linear/sm90/wgmma/forward/tile.cuh"
#include "kernels/bsr_linear/sm90/wgmma/forward/walk.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/ld.cuh"
#include "kernels/shared/ptx/ldmatrix.cuh"
#include "kernels/shared/ptx/sm90/mbarrier.cuh"
#include "kernels/shared/ptx/sm90/named_barrier.cuh"
#include "kernels/shared/ptx/sm90/stmatrix.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"
#include "kernels/shared/ptx/sm90/wgmma.cuh"

namespace sparseloom::kernels::cuda::wgmma::forward {

/// sums += parts x^T over the present parts of the warpgroup's outputs. x and parts are shared addresses /
/// 16.
template <class T>
__device__ __forceinline__ void multiply_k_tile_swap_ab(Sums<T>& sums, std::uint32_t x, std::uint32_t parts,
                                                        std::uint32_t record, int warpgroup) {
  constexpr int kHalf = T::kBlockRows == 1
                            ? T::kPartBytes / 2
                            : T::kStageParts * T::kPartBytes;  // stride between the warpgroups' parts
  const int block_row = T::kBlockRows == 1 ? 0 : warpgroup;
#pragma unroll
  for (int part = 0; part < T::kStageParts; ++part) {
    if ((record & T::present(block_row, part)) == 0) continue;
    // The fence follows the branch: before it, ptxas does not count it and serialises (C7520).
    ptx::wgmma_fence();
    const std::uint32_t w = parts + warpgroup * (kHalf / 16) + part * (T::kPartBytes / 16);
#pragma unroll
    for (int step = 0; step < T::kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < T::kTokenHalves; ++half) {
        T::Element::template mma_swap_ab<T::kIsDx>(
            sums[half][0], T::kDescriptorPart | (w + step * (T::kStepBytes / 16)),
            T::kDescriptorX | (x + x_offset<T>(part, step, half * (128 / 64))));
      }
    }
    ptx::wgmma_commit();
  }
}

/// The warpgroup's epilogue, used like WarpStore.
template <class T>
class SwapABStore {
 public:
  static constexpr int kBoxes = T::kTokens / T::kStoreRows;
  static constexpr int kTokenScales = T::Element::kScaled && !T::kDeferredStore ? T::kTokens / 32 : 1;
  using Bits = typename T::Element::Out::Bits;

  __device__ __forceinline__ SwapABStore(SharedStorage<T>& shared, int warpgroup)
      : warpgroup_(warpgroup),
        staging_(ptx::shared_address(shared.staging[warpgroup])),
        others_staging_(ptx::shared_address(shared.staging[1 - warpgroup])),
        residual_(ptx::shared_address(&shared.residual[warpgroup].barrier)),
        leader_(T::kDeferredStore && leads()),
        epilogue_queue_(shared) {}

  /// Fetches bias and scales, and requests the residual's first box.
  __device__ __forceinline__ void begin(const Params& params, const Place& place) {
    column_ = in_matrix<T>(params, place.output + warpgroup_ * 64);
    bias_[0] = bias_[1] = 0;
    if constexpr (T::Element::kScaled) fetch_scales(params, place.token);
    const void* bias = T::kGlu && warpgroup_ == 1 ? params.factor_bias : params.bias;
    if (bias != nullptr) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::int32_t output = column_ + warp() * 16 + i * 8 + lane() / 4;
        if (output < params.out_width) bias_[i] = ptx::ld_global(static_cast<const Bits*>(bias) + output);
      }
    }
    if constexpr (T::kAddsResidual) {
      if (asks_ahead<T>(params) && leads()) {
        ptx::bulk_wait_read<0>();
        ask(params, place.token, staging_);
      }
    }
  }

  /// Stores the tile; with kDeferredStore, rounds what put_kept() will store.
  __device__ __forceinline__ void end(const Params& params, const Place& place, const Sums<T>& sums) {
    if constexpr (T::kHasEpilogueWarps) {
#pragma unroll
      for (int n = 0; n < kBoxes; ++n) {
        epilogue_queue_.begin(warpgroup_ * kBoxes + n);
        write(staging_ + n * T::kStoreBytes, [&](int i, std::uint32_t(&pairs)[4]) {
          round<true>(pairs, sums, n * T::kStoreRows + i * 16, [](float v) { return v; });
        });
        epilogue_queue_.end(warpgroup_ * kBoxes + n);
      }
      epilogue_queue_.end_tile();
    } else if constexpr (T::kGlu) {
      with_activation<T>(params, [&](auto activation) {
        if (warpgroup_ == 0) {
          put_glu<0>(params, place, sums, activation);
        } else {
          put_glu<1>(params, place, sums, activation);
        }
      });
    } else if constexpr (T::kDeferredStore) {
      if (params.bias == nullptr) {  // the common case has shorter code
        keep<false>(place.token, sums);
      } else {
        keep<true>(place.token, sums);
      }
    } else if (!T::kAddsResidual && params.activation == Activation::none && params.bias == nullptr) {
      put_boxes<false>(params, place.token, sums, [](float v) { return v; });
    } else {
      with_activation<T>(params,
                         [&](auto activation) { put_boxes<true>(params, place.token, sums, activation); });
    }
  }

  /// With kDeferredStore: stores box kBox of the previous tile, if there was one.
  template <int kBox>
  __device__ __forceinline__ void put_kept(const Params& params) {
    if (!keeps_) return;
    put(params, params.out, kept_column_, kept_token_, kBox, kBox % T::kStagingBuffers, leader_,
        [&](int i, std::uint32_t(&pairs)[4]) {
#pragma unroll
          for (int pair = 0; pair < 4; ++pair)
            pairs[pair] = kept_[(kBox * (T::kStoreRows / 16) + i) * 4 + pair];
        });
  }
  /// Stores these boxes from kFirst on.
  template <int kFirst>
  __device__ __forceinline__ void put_all_kept(const Params& params) {
    if constexpr (kFirst < kBoxes) {
      put_kept<kFirst>(params);
      put_all_kept<kFirst + 1>(params);
    }
  }

 private:
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int warp() { return threadIdx.x / 32 % 4; }
  /// Whether this lane issues TMA for the warpgroup; it is always the same one. Ask once per tile and keep
  /// the answer. Electing for every box, behind a test of the warp, made ptxas assume that the loop's
  /// addresses differ between lanes, and measured slower in blocks of 64. Electing once for all tiles does
  /// the same, unless boxes are stored within the loop over a tile's stages.
  static __device__ __forceinline__ bool leads() { return warp() == 0 && ptx::elect_lane(); }
  __device__ __forceinline__ void sync() const { ptx::named_barrier_sync<128>(warpgroup_ + 1); }

  /// Like Scales in store.cuh, with tokens and outputs exchanged. With kDeferredStore all tokens share one
  /// scale.
  __device__ __forceinline__ void fetch_scales(const Params& params, std::int32_t token) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::int32_t output = min(column_ + warp() * 16 + i * 8 + lane() / 4, params.out_width - 1);
      out_scale_[i] = ptx::ld_global(params.out_scale + (params.out_scale_each ? output : 0));
    }
#pragma unroll
    for (int i = 0; i < kTokenScales; ++i) {
      const bool scale_per_token = !T::kDeferredStore && params.x_scale_each;
      x_scale_[i] = ptx::ld_global(params.x_scale +
                                   (scale_per_token ? min(token + i * 32 + lane(), params.tokens - 1) : 0));
    }
  }

  /// Requests a box of the residual; the leader calls it.
  __device__ __forceinline__ void ask(const Params& params, std::int32_t token, std::uint32_t box) const {
    ptx::mbarrier_arrive_expect_tx(residual_, T::kStoreBytes);
    ptx::tma_load_2d(box, &params.residual, column_, token, residual_);
  }

  /// kDeferredStore: rounds the tile into kept_.
  template <bool kBias>
  __device__ __forceinline__ void keep(std::int32_t token, const Sums<T>& sums) {
#pragma unroll
    for (int i = 0; i < T::kTokens / 16; ++i) {
      std::uint32_t pairs[4];
      round<kBias>(pairs, sums, i * 16, [](float v) { return v; });
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) kept_[i * 4 + pair] = pairs[pair];
    }
    kept_token_ = token;
    kept_column_ = column_;
    keeps_ = true;
  }

  /// Stores all boxes of the tile, and those of `pre` if they are wanted.
  template <bool kBias, class Function>
  __device__ __forceinline__ void put_boxes(const Params& params, std::int32_t token, const Sums<T>& sums,
                                            Function activation) {
    const bool leader = leads();
    int buffer = 0;
#pragma unroll
    for (int n = 0; n < kBoxes; ++n) {
      if constexpr (T::kStoresPre) {
        if (params.store_pre) {
          put(params, params.pre, column_, token, n, buffer, leader, [&](int i, std::uint32_t(&pairs)[4]) {
            round<kBias>(pairs, sums, n * T::kStoreRows + i * 16, [](float v) { return v; });
          });
          buffer = (buffer + 1) % T::kStagingBuffers;
        }
      }
      put<T::kAddsResidual>(params, params.out, column_, token, n, buffer, leader,
                            [&](int i, std::uint32_t(&pairs)[4], const auto&... others) {
                              round<kBias>(pairs, sums, n * T::kStoreRows + i * 16, activation, others...);
                            });
      buffer = (buffer + 1) % T::kStagingBuffers;
    }
  }

  /// kGlu: the warpgroups have the gates (0) and the factors (1) of the same outputs. Each passes half of its
  /// tokens to the other through its own staging buffers, and there replaces the other's by the results.
  /// kOwn: the warpgroup, of which the registers' numbers depend.
  template <int kOwn, class Function>
  __device__ __forceinline__ void put_glu(const Params& params, const Place& place, const Sums<T>& sums,
                                          Function activation) {
    constexpr int kHalf = kBoxes / 2;
    static_assert(T::kStagingBuffers == kHalf);
    const bool leader = leads();
    if (leader) ptx::bulk_wait_read<0>();  // the last tile's stores have read the other's staging
    const auto meet = [] { ptx::named_barrier_sync<T::kConsumers * 128>(T::kConsumers + 1); };
    meet();
#pragma unroll
    for (int n = 0; n < kHalf; ++n) {
      write(staging_ + n * T::kStoreBytes, [&](int i, std::uint32_t(&pairs)[4]) {
        round<true>(pairs, sums, ((1 - kOwn) * kHalf + n) * T::kStoreRows + i * 16,
                    [](float v) { return v; });
      });
    }
    meet();
    const std::int32_t column = in_matrix<T>(params, place.output);  // of the gates
#pragma unroll
    for (int n = 0; n < kHalf; ++n) {
      const std::int32_t tokens = (kOwn * kHalf + n) * T::kStoreRows;
      const std::uint32_t box = others_staging_ + n * T::kStoreBytes;
      write<true>(box, [&](int i, std::uint32_t(&pairs)[4], const std::uint32_t(&others)[4]) {
        round<true>(pairs, sums, tokens + i * 16, [](float v) { return v; });
#pragma unroll
        for (int pair = 0; pair < 4; ++pair)
          pairs[pair] = kOwn == 0 ? glu_of<T>(pairs[pair], others[pair], activation)
                                  : glu_of<T>(others[pair], pairs[pair], activation);
      });
      ptx::fence_proxy_async();
      sync();
      if (leader) {
        ptx::tma_store_2d(&params.out, column, place.token + tokens, box, params.out_policy);
        ptx::bulk_commit();
      }
    }
  }

  /// Rounds the lane's sums of 16 tokens to pairs for stmatrix: pair j is output lane / 4 + j % 2 * 8 of
  /// tokens j / 2 * 8 + 2 (lane % 4) and the next. `others` are pairs of the residual, which are added before
  /// rounding.
  template <bool kBias, class Function, class... Others>
  __device__ __forceinline__ void round(std::uint32_t (&pairs)[4], const Sums<T>& sums, int tokens,
                                        Function function, const Others&... others) const {
    [[maybe_unused]] float x_scale[4];  // for tokens 2 (lane % 4), + 1, + 8 and + 9
    if constexpr (T::Element::kScaled) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (T::kDeferredStore) {
          x_scale[j] = x_scale_[0];
        } else {
          x_scale[j] = __shfl_sync(0xffffffff, x_scale_[tokens / 32],
                                   tokens % 32 + j / 2 * 8 + lane() % 4 * 2 + j % 2);
        }
      }
    }
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      float y[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int number = (tokens + pair / 2 * 8) / 2 + pair % 2 * 2 + e;
        constexpr int kOfHalf = 128 / T::kTokenHalves;
        const float sum = sums[number / kOfHalf][0][number % kOfHalf];
        if constexpr (T::Element::kScaled) {
          const float scaled = sum * x_scale[pair / 2 * 2 + e];
          y[e] = function(kBias ? fmaf(scaled, out_scale_[pair % 2], T::Element::Out::to_f32(bias_[pair % 2]))
                                : scaled * out_scale_[pair % 2]);
        } else {
          y[e] = function(kBias ? sum + T::Element::Out::to_f32(bias_[pair % 2]) : sum);
        }
        ((y[e] += T::Element::Out::to_f32(static_cast<std::uint16_t>(others[pair] >> (16 * e)))), ...);
      }
      pairs[pair] = T::Element::Out::pair(y[0], y[1]);
    }
  }

  /// Writes the warp's outputs of a box, which has 64 tokens of the warpgroup's outputs. pairs_of(i, pairs)
  /// returns those of the box's tokens from 16 i on.
  template <bool kAdds = false, class PairsOf>
  __device__ __forceinline__ void write(std::uint32_t box, PairsOf pairs_of) const {
    // This lane's row among 16 tokens, for stmatrix and ldmatrix: it has tokens from 8 (lane / 16) on and
    // outputs from 8 (lane / 8 % 2) on.
    const std::uint32_t row =
        box + (lane() / 16 * 8 + lane() % 8) * 128 + ((warp() * 2 + lane() / 8 % 2) ^ lane() % 8) * 16;
#pragma unroll
    for (int i = 0; i < T::kStoreRows / 16; ++i) {
      std::uint32_t pairs[4];
      if constexpr (kAdds) {
        std::uint32_t others[4];
        ptx::ldmatrix_x4_trans(others, row + i * 16 * 128);
        pairs_of(i, pairs, others);
      } else {
        pairs_of(i, pairs);
      }
      ptx::stmatrix_x4_trans(row + i * 16 * 128, pairs);
    }
  }

  /// Writes and stores box n of a tile: the warpgroup's outputs of tokens from 64 n on.
  template <bool kAdds = false, class PairsOf>
  __device__ __forceinline__ void put(const Params& params, const CUtensorMap& map, std::int32_t column,
                                      std::int32_t token, int n, int buffer, bool leader, PairsOf pairs_of) {
    const std::uint32_t box = staging_ + buffer * T::kStoreBytes;
    const bool ahead = kAdds && asks_ahead<T>(params);
    // Wait for a free staging buffer, or for the residual in it.
    if (!ahead) {
      if (leader) {
        ptx::bulk_wait_read<T::kStagingBuffers - 1>();  // the buffer's last store has read it
        if constexpr (kAdds) ask(params, token + n * T::kStoreRows, box);
      }
      if constexpr (!kAdds) sync();
    }
    if constexpr (kAdds) ptx::mbarrier_wait(residual_, n % 2);
    static_assert(kBoxes % 2 == 0, "every tile begins with phase 0");
    write<kAdds>(box, pairs_of);
    ptx::fence_proxy_async();
    sync();
    // Issue the TMA store, and request the residual's next box.
    if (leader) {
      ptx::tma_store_2d(&map, column, token + n * T::kStoreRows, box, params.out_policy);
      ptx::bulk_commit();
      if (ahead && n + 1 < kBoxes) {
        ptx::bulk_wait_read<T::kStagingBuffers - 1>();
        ask(params, token + (n + 1) * T::kStoreRows,
            staging_ + (buffer + 1) % T::kStagingBuffers * T::kStoreBytes);
      }
    }
  }

  const int warpgroup_;
  const std::uint32_t staging_, others_staging_, residual_;
  const bool leader_;  // used with kDeferredStore; otherwise leads() is called per tile
  EpilogueQueue<T> epilogue_queue_;
  std::int32_t column_;  // the warpgroup's first output in the matrix
  Bits bias_[2];         // bias of outputs lane / 4 and lane / 4 + 8 of the warp's 16
  // kScaled: scales of the same outputs, and of tokens lane, lane + 32, ..
  float out_scale_[T::Element::kScaled ? 2 : 1], x_scale_[kTokenScales];
  // kDeferredStore: the previous tile, rounded, and its position in the matrix
  bool keeps_ = false;
  std::uint32_t kept_[T::kDeferredStore ? T::kTokens / 4 : 1];
  std::int32_t kept_column_, kept_token_;
};

}  // namespace sparseloom::kernels::cuda::wgmma::forward
