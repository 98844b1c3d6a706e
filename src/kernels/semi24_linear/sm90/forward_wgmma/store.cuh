// The epilogue of a warpgroup: out = round(act(sums + bias) + residual), where sums of 8-bit operands are
// scaled first. The sums have rows of W along M, so they are transposed on their way through shared memory,
// in boxes of 32 tokens x 64 outputs that the four warps fill together, 16 outputs each. TMA stores the boxes
// and clips at the last token and output; the stores run on while the next tile is multiplied. fp32 outputs
// of 8-bit operands go straight to memory: eight lanes have eight outputs of a token, a sector.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/semi24_linear/sm90/forward_wgmma/element.cuh"
#include "kernels/semi24_linear/sm90/forward_wgmma/tile.cuh"
#include "kernels/shared/epilogue/activation.cuh"
#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/ld.cuh"
#include "kernels/shared/ptx/ldmatrix.cuh"
#include "kernels/shared/ptx/sm90/mbarrier.cuh"
#include "kernels/shared/ptx/sm90/named_barrier.cuh"
#include "kernels/shared/ptx/sm90/stmatrix.cuh"
#include "kernels/shared/ptx/sm90/tma.cuh"

namespace sparseloom::kernels::cuda::semi24 {

template <class T>
struct Staging {
  alignas(1024) std::byte boxes[T::kConsumers][T::kStagingBuffers][T::kStoreBytes];
  alignas(16) float x_scales[T::kConsumers][T::Element::kScaled ? T::kTokens : 4];
};

/// The scales of a tile: those of the lane's outputs, and of tokens 128 i + t of thread t of the warpgroup.
template <class T, bool kScaled = T::Element::kScaled>
struct Scales {};
template <class T>
struct Scales<T, true> {
  float w[T::kBlocks * 2], x[(T::kTokens + 127) / 128];
};

template <class T>
class Store {
 public:
  static constexpr int kBoxes = T::kTokens / T::kStoreTokens;  // boxes of a block of 64 rows
  static_assert(T::kBlocks * kBoxes % 2 == 0, "every tile begins with phase 0 of the residual's barrier");

  __device__ __forceinline__ Store(Staging<T>& staging, std::uint64_t (&residual)[T::kConsumers],
                                   int warpgroup)
      : warpgroup_(warpgroup),
        staging_(ptx::shared_address(staging.boxes[warpgroup])),
        x_scales_(ptx::shared_address(staging.x_scales[warpgroup])),
        residual_(ptx::shared_address(&residual[warpgroup])) {}

  /// Fetches the bias of the tile's rows, and the scales.
  __device__ __forceinline__ void begin(const Params& params, std::int32_t row, std::int32_t token) {
    row_ = row + warpgroup_ * (T::kBlocks * 64);
#pragma unroll
    for (int i = 0; i < T::kBlocks * 2; ++i) {
      const std::int32_t output = row_ + i / 2 * 64 + warp() * 16 + i % 2 * 8 + lane() / 4;
      bias_[i] =
          output < params.rows ? bias_of<typename T::Element>(params.bias, params.is_f32, output) : 0.0f;
      if constexpr (T::Element::kScaled)
        scales_.w[i] =
            ptx::ld_global(params.w_scale + (params.w_scale_each ? min(output, params.rows - 1) : 0));
    }
    if constexpr (T::Element::kScaled) {
#pragma unroll
      for (int i = 0; i < kScaleTurns; ++i) {
        const std::int32_t own = token + i * 128 + static_cast<std::int32_t>(threadIdx.x % 128);
        scales_.x[i] =
            ptx::ld_global(params.x_scale + (params.x_scale_each ? min(own, params.tokens - 1) : 0));
      }
    }
  }

  __device__ __forceinline__ void end(const Params& params, std::int32_t token, const Sums<T>& sums) {
    if constexpr (T::Element::kScaled) {
      // All warps have read the previous tile's scales: they synchronised after its last box.
#pragma unroll
      for (int i = 0; i < kScaleTurns; ++i) {
        const int own = i * 128 + static_cast<int>(threadIdx.x % 128);
        if (own < T::kTokens) ptx::st_shared_b32(x_scales_ + own * 4, __float_as_uint(scales_.x[i]));
      }
      sync();
      if (params.is_f32) {
        epilogue::with_activation<false>(params.activation,
                                         [&](auto activation) { put_rows(params, token, sums, activation); });
        sync();
        return;
      }
    }
    epilogue::with_activation<true>(params.activation, [&](auto activation) {
      if constexpr (!T::Element::kScaled) {
        if (params.adds_residual) return put_boxes<true>(params, token, sums, activation);
      }
      put_boxes<false>(params, token, sums, activation);
    });
  }

 private:
  static constexpr int kScaleTurns = (T::kTokens + 127) / 128;

  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int warp() { return threadIdx.x / 32 % 4; }
  __device__ __forceinline__ void sync() const { ptx::named_barrier_sync<128>(warpgroup_ + 1); }

  /// The scales of tokens `of` + 2 (lane % 4) and the next; 1 if there are none.
  struct Pair {
    float each[2];
  };
  __device__ __forceinline__ Pair x_scales_of(int of) const {
    Pair pair{{1.0f, 1.0f}};
    if constexpr (T::Element::kScaled) {
      std::uint32_t bits[2];
      ptx::ld_shared(bits, x_scales_ + (of + lane() % 4 * 2) * 4);
      pair = {{__uint_as_float(bits[0]), __uint_as_float(bits[1])}};
    }
    return pair;
  }

  /// Sum i of a block, for output lane / 4 + `half` * 8, with scales and bias.
  __device__ __forceinline__ float finished(const Sums<T>& sums, int block, int i, int half,
                                            float x_scale) const {
    const int own = block * 2 + half;
    if constexpr (T::Element::kScaled)
      return fmaf(static_cast<float>(sums[block][i]) * x_scale, scales_.w[own], bias_[own]);
    else
      return sums[block][i] + bias_[own];
  }

  template <class Function>
  __device__ __forceinline__ void put_rows(const Params& params, std::int32_t token, const Sums<T>& sums,
                                           Function activation) {
    const std::int64_t stride = params.out_stride;
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) {
      const std::int32_t row = row_ + block * 64 + warp() * 16 + lane() / 4;
      std::int32_t left = params.tokens - token - lane() % 4 * 2;  // tokens from the lane's own on
      float* to = params.out_f32 + (token + lane() % 4 * 2) * stride + row;
#pragma unroll
      for (int first = 0; first < T::kTokens; first += 8, left -= 8, to += 8 * stride) {
        asm volatile("" : "+l"(to), "+r"(left));  // or all addresses and predicates would be computed ahead
        const Pair x_scales = x_scales_of(first);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float y = activation(finished(sums, block, first / 2 + i, i / 2, x_scales.each[i % 2]));
          if (row + i / 2 * 8 < params.rows && i % 2 < left) to[i % 2 * stride + i / 2 * 8] = y;
        }
      }
    }
  }

  template <bool kAdds, class Function>
  __device__ __forceinline__ void put_boxes(const Params& params, std::int32_t token, const Sums<T>& sums,
                                            Function activation) {
    const bool leader = warp() == 0 && ptx::elect_lane();
    // This lane's row among 16 tokens, for stmatrix and ldmatrix: it has tokens from 8 (lane / 16) on and
    // outputs from 8 (lane / 8 % 2) on.
    const std::uint32_t own =
        (lane() / 16 * 8 + lane() % 8) * 128 + ((warp() * 2 + lane() / 8 % 2) ^ lane() % 8) * 16;
#pragma unroll
    for (int n = 0; n < T::kBlocks * kBoxes; ++n) {
      const int block = n / kBoxes, first = n % kBoxes * T::kStoreTokens;
      const std::int32_t column = row_ + block * 64;
      const std::uint32_t box = staging_ + n % T::kStagingBuffers * T::kStoreBytes;
      // Wait until the buffer's last store has read it, or for the residual in it.
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
          const int of = first + i * 16 + j / 2 * 8;
          const Pair x_scales = x_scales_of(of);
          float y[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            y[e] = activation(finished(sums, block, of / 2 + j % 2 * 2 + e, j % 2, x_scales.each[e]));
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
  const std::uint32_t staging_, x_scales_, residual_;
  std::int32_t row_;            // the warpgroup's first row of W
  float bias_[T::kBlocks * 2];  // of outputs lane / 4 and lane / 4 + 8 of each warp's 16
  Scales<T> scales_;
};

}  // namespace sparseloom::kernels::cuda::semi24
