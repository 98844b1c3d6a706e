// The epilogue of a warpgroup: out = round(act(sums + bias) + residual). The sums have rows of W along M, so
// they are transposed on their way through shared memory, in boxes of 32 tokens x 64 outputs that the four
// warps fill together, 16 outputs each. TMA stores the boxes and clips at the last token and output; the
// stores run on while the next tile is multiplied.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/semi24_linear/sm90/forward_wgmma/tile.cuh"
#include "kernels/shared/epilogue/activation.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/ld_global.cuh"
#include "kernels/shared/ptx/ldmatrix.cuh"
#include "kernels/shared/ptx/sm90/mbarrier.cuh"
#include "kernels/shared/ptx/sm90/named_barrier.cuh"
#include "kernels/shared/ptx/sm90/stmatrix.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"

namespace sparseloom::kernels::cuda::semi24 {

template <class T>
struct Staging {
  alignas(1024) std::byte boxes[T::kConsumers][T::kStagingBuffers][T::kStoreBytes];
};

template <class T>
class Store {
 public:
  static constexpr int kBoxes = T::kTokens / T::kStoreTokens;  // of a block of 64 rows
  static_assert(T::kBlocks * kBoxes % 2 == 0, "every tile begins with phase 0 of the residual's barrier");

  __device__ __forceinline__ Store(Staging<T>& staging, std::uint64_t (&residual)[T::kConsumers],
                                   int warpgroup)
      : warpgroup_(warpgroup),
        staging_(ptx::shared_address(staging.boxes[warpgroup])),
        residual_(ptx::shared_address(&residual[warpgroup])) {}

  /// Fetches the bias of the tile's rows.
  __device__ __forceinline__ void begin(const Params& params, std::int32_t row) {
    row_ = row + warpgroup_ * (T::kBlocks * 64);
#pragma unroll
    for (int i = 0; i < T::kBlocks * 2; ++i) {
      const std::int32_t output = row_ + i / 2 * 64 + warp() * 16 + i % 2 * 8 + lane() / 4;
      bias_[i] =
          params.bias != nullptr && output < params.rows
              ? T::Element::to_f32(ptx::ld_global(static_cast<const std::uint16_t*>(params.bias) + output))
              : 0.0f;
    }
  }

  __device__ __forceinline__ void end(const Params& params, std::int32_t token, const Sums<T>& sums) {
    epilogue::with_activation<true>(params.activation, [&](auto activation) {
      if (params.adds_residual)
        put_boxes<true>(params, token, sums, activation);
      else
        put_boxes<false>(params, token, sums, activation);
    });
  }

 private:
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int warp() { return threadIdx.x / 32 % 4; }
  __device__ __forceinline__ void sync() const { ptx::named_barrier_sync<128>(warpgroup_ + 1); }

  template <bool kAdds, class Function>
  __device__ __forceinline__ void put_boxes(const Params& params, std::int32_t token, const Sums<T>& sums,
                                            Function activation) {
    const bool leader = warp() == 0 && ptx::elect_lane();
    // Where this lane's row is among 16 tokens, as stmatrix and ldmatrix take them: it has tokens from 8
    // (lane / 16) on and outputs from 8 (lane / 8 % 2) on.
    const std::uint32_t own =
        (lane() / 16 * 8 + lane() % 8) * 128 + ((warp() * 2 + lane() / 8 % 2) ^ lane() % 8) * 16;
#pragma unroll
    for (int n = 0; n < T::kBlocks * kBoxes; ++n) {
      const int block = n / kBoxes, first = n % kBoxes * T::kStoreTokens;
      const std::int32_t column = row_ + block * 64;
      const std::uint32_t box = staging_ + n % T::kStagingBuffers * T::kStoreBytes;
      // Wait until the last store from this buffer has read it, or for the residual in it.
      if (leader) {
        ptx::bulk_wait_read<T::kStagingBuffers - 1>();
        if constexpr (kAdds) {
          ptx::mbarrier_arrive_expect_tx(residual_, T::kStoreBytes);
          ptx::tma_load_2d(box, &params.residual, column, token + first, residual_);
        }
      }
      if constexpr (kAdds) {
        ptx::mbarrier_wait(residual_, n % 2);
      } else {
        sync();
      }
#pragma unroll
      for (int i = 0; i < T::kStoreTokens / 16; ++i) {
        const std::uint32_t to = box + own + i * 16 * 128;
        [[maybe_unused]] std::uint32_t others[4];
        if constexpr (kAdds) ptx::ldmatrix_x4_trans(others, to);
        // Pair j: output lane / 4 + j % 2 * 8 of tokens j / 2 * 8 + 2 (lane % 4) and the next.
        std::uint32_t pairs[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float y[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            y[e] = activation(sums[block][(first + i * 16 + j / 2 * 8) / 2 + j % 2 * 2 + e] +
                              bias_[block * 2 + j % 2]);
            if constexpr (kAdds)
              y[e] += T::Element::to_f32(static_cast<std::uint16_t>(others[j] >> (16 * e)));
          }
          pairs[j] = T::Element::pair(y[0], y[1]);
        }
        ptx::stmatrix_x4_trans(to, pairs);
      }
      ptx::fence_proxy_async();
      sync();
      if (leader) {
        ptx::tma_store_2d(&params.out, column, token + first, box, ptx::L2Policy::evict_normal);
        ptx::bulk_commit();
      }
    }
  }

  const int warpgroup_;
  const std::uint32_t staging_, residual_;
  std::int32_t row_;            // the warpgroup's first row of W
  float bias_[T::kBlocks * 2];  // of the lane's outputs: lane / 4 and lane / 4 + 8 of the warp's 16
};

}  // namespace sparseloom::kernels::cuda::semi24
