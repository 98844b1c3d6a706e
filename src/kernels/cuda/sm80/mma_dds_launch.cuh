// Host side of mma_dds: which tile, and the launch.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/cuda/sm80/mma_dds.cuh"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::dds {

// Tiles by block side along the line. Shared memory reads of a warp tile cost (tokens + line) / 4 cycles per 32 bytes of k, its
// tensor instructions tokens x line / 84: only 64 x 64 (32 against 49) leaves room for the copies' writes, so sides 64 and 128 take
// that in 4 warps, at two thread blocks per multiprocessor so that one's epilogue hides behind the other's loop. Below 64 the
// gathered rows of A (2 x side bytes) bound the kernel through L2: many tokens, so that B adds little, and more warps.
template <class Element, int kLine>
struct Tiles;
template <class Element>
struct Tiles<Element, 8> {
  using Wide = Tile<Element, 8, 128, 128, 4, 1, 4, 3>;
  using Narrow = Wide;  // a line this thin gives thread blocks enough
};
template <class Element>
struct Tiles<Element, 16> {
  using Wide = Tile<Element, 16, 128, 128, 4, 1, 4, 3>;
  using Narrow = Wide;
};
template <class Element>
struct Tiles<Element, 32> {
  using Wide = Tile<Element, 32, 256, 128, 8, 1, 3, 2>;
  using Narrow = Tile<Element, 32, 64, 128, 4, 1, 4, 4>;
};
template <class Element>
struct Tiles<Element, 64> {
  using Wide = Tile<Element, 64, 256, 64, 4, 1, 4, 2>;  // 128 bytes of k would leave two stages
  using Narrow = Tile<Element, 64, 64, 128, 2, 2, 4, 3>;
};
template <class Element>
struct Tiles<Element, 128> {
  using Wide = Tile<Element, 128, 128, 128, 2, 2, 3, 2>;
  using Narrow = Tile<Element, 128, 64, 128, 2, 2, 4, 2>;
};

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

inline bool aligned(const void* pointer, std::int64_t row_bytes, unsigned alignment) {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignment == 0 && row_bytes % alignment == 0;
}

/// Tokens that a multiprocessor works through one after the other, whole waves: what a tile's time goes with.
template <class T>
std::int64_t tokens_in_turn(std::int64_t m, std::int64_t lines, int multiprocessors) {
  const std::int64_t places = std::int64_t{T::kBlocksPerSm} * std::max(multiprocessors, 1);
  return ceil_div(ceil_div(m, T::kTokens) * lines, places) * T::kTokens * T::kBlocksPerSm;
}

template <class Direction, class T>
int launch_tile(const Params& params, const MatmulArgs& args) noexcept {
  constexpr int kSharedBytes = sizeof(SharedStorage<T>);
  static std::atomic<std::uint64_t> prepared{0};  // devices, one bit each; beyond 63 every launch sets the attributes anew
  const std::uint64_t bit = args.device >= 0 && args.device < 64 ? std::uint64_t{1} << args.device : 0;
  if ((prepared.load(std::memory_order_relaxed) & bit) == 0) {
    cudaError_t error =
        cudaFuncSetAttribute(mma_dds_kernel<Direction, T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    if (error == cudaSuccess) {
      error = cudaFuncSetAttribute(mma_dds_kernel<Direction, T>, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared);
    }
    if (error != cudaSuccess) {
      cudaGetLastError();  // not for the next caller
      return error;
    }
    prepared.fetch_or(bit, std::memory_order_relaxed);
  }
  // Below 2^31 for every output that fits a device: a thread block writes 512 elements or more.
  const auto grid = static_cast<unsigned>(ceil_div(params.m, T::kTokens) * params.lines);
  mma_dds_kernel<Direction, T><<<grid, T::kThreads, kSharedBytes, static_cast<cudaStream_t>(args.stream)>>>(params);
  return cudaGetLastError();
}

template <class Direction, class Element, int kLine>
int launch_line(const Params& params, const MatmulArgs& args) noexcept {
  using Wide = typename Tiles<Element, kLine>::Wide;
  using Narrow = typename Tiles<Element, kLine>::Narrow;
  const runtime::CudaDevice& device = runtime::cuda_device(args.device);
  // A narrow tile reads B four (at side 128 two) times as often: 5/4 of the time per token.
  const bool wide = sizeof(SharedStorage<Wide>) <= device.shared_bytes &&
                    4 * tokens_in_turn<Wide>(params.m, params.lines, device.multiprocessors) <=
                        5 * tokens_in_turn<Narrow>(params.m, params.lines, device.multiprocessors);
  return wide ? launch_tile<Direction, Wide>(params, args) : launch_tile<Direction, Narrow>(params, args);
}

template <class Direction, class Element>
int launch(const MatmulArgs& args) noexcept {
  constexpr int kBytes = sizeof(typename Element::Bits);
  constexpr bool dx = kIsDx<Direction>;
  const IndexView& index = args.index;
  Params params{};
  params.a = args.a;
  params.values = args.values;
  params.list_begin = dx ? args.transposed.ccol : index.crow;
  params.along = dx ? args.transposed.row : index.col;
  params.slot = dx ? args.transposed.slot : nullptr;
  params.bias = dx ? nullptr : args.bias;
  params.out = args.out;
  params.m = args.m;
  params.a_width = dx ? index.rows : index.cols;
  params.a_stride = args.a_stride;
  params.out_width = dx ? index.cols : index.rows;
  params.out_stride = args.out_stride;
  params.lines = static_cast<unsigned>(dx ? index.block_cols() : index.block_rows());
  params.side_log2 = std::countr_zero(static_cast<unsigned>(dx ? index.block.rows : index.block.cols));
  params.activation = dx ? Activation::none : args.activation;
  params.copy_a = aligned(args.a, args.a_stride * kBytes, 16);
  params.copy_b = aligned(args.values, 0, 16);
  params.store_vectors = aligned(args.out, args.out_stride * kBytes, 4 * kBytes);
  if (params.m == 0 || params.lines == 0) return cudaSuccess;
  switch (dx ? index.block.cols : index.block.rows) {
    case 8: return launch_line<Direction, Element, 8>(params, args);
    case 16: return launch_line<Direction, Element, 16>(params, args);
    case 32: return launch_line<Direction, Element, 32>(params, args);
    case 64: return launch_line<Direction, Element, 64>(params, args);
    case 128: return launch_line<Direction, Element, 128>(params, args);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda::dds
