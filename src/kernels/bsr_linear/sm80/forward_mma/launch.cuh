// Host side of mma_dds: chooses the tile and the number of block rows per thread block or of thread blocks
// per block row, and launches.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/args.h"
#include "kernels/bsr_linear/sm80/forward_mma/dds_tiles.cuh"
#include "kernels/bsr_linear/sm80/forward_mma/kernel.cuh"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::dds {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

inline bool aligned(const void* pointer, std::int64_t row_bytes, unsigned alignment) {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignment == 0 && row_bytes % alignment == 0;
}

/// How one tile would run a call, and its predicted time.
struct Schedule {
  double us = 1e30;
  int block_rows_in_turn = 1;
  int parts = 1;  // thread blocks of a cluster that share a block row
};

/// What a prediction needs to know about a call.
struct Call {
  std::int64_t m, block_rows;
  double reduction;  // elements, of an average block row
  int multiprocessors;
  std::size_t shared_bytes;
  bool clusters;
};

/// Predicts whole waves of thread blocks. Each wave costs its start and then the bytes of its block rows at
/// the multiprocessor's share of L2 bandwidth.
template <class T>
Schedule schedule(const Call& call, bool team) {
  constexpr double kBytesPerUs = 45.5e3;  // L2 to one multiprocessor of an H200 (see dds_tiles.cuh)
  // Launch, list, index entries and first chunk: the measured intercept of the time over density, per wave.
  constexpr double kStartUs = 3;
  constexpr double kExchangeUs = 1.5;  // exchange of a team's partial sums
  Schedule best;
  if (sizeof(SharedStorage<T>) > call.shared_bytes) return best;
  constexpr std::size_t kReserved = 1024;  // shared memory that the system reserves per thread block
  const std::int64_t resident = std::min<std::int64_t>(
      T::kBlocksPerSm, (call.shared_bytes + kReserved) / (sizeof(SharedStorage<T>) + kReserved));
  const std::int64_t m_tiles = ceil_div(call.m, T::kTokens);
  // Absent tokens cost no bytes.
  const double tokens = static_cast<double>(std::min<std::int64_t>(call.m, T::kTokens));
  const double chunks = call.reduction / T::kChunk + 0.5,
               chunk_bytes = (tokens + T::kBlockRow) * T::kChunkBytes;
  const auto consider = [&](int block_rows_in_turn, int parts) {
    const std::int64_t blocks = m_tiles * ceil_div(call.block_rows, block_rows_in_turn) * parts;
    const double rounds = static_cast<double>(ceil_div(blocks, resident * call.multiprocessors));
    const double sharing = static_cast<double>(std::min(resident, ceil_div(blocks, call.multiprocessors)));
    const double bytes = chunks / parts * chunk_bytes + tokens * T::kBlockRow * T::kBytes;
    const double turn = block_rows_in_turn * bytes * sharing / kBytesPerUs;
    // Block rows differ in length: on average, a quarter of a thread block's work is waited for at the end.
    // Thread blocks of a single block row do not have this cost.
    const double us =
        rounds * (kStartUs + turn) + (block_rows_in_turn > 1 ? turn / 4 : 0) + (parts > 1 ? kExchangeUs : 0);
    if (us < best.us) best = {us, block_rows_in_turn, parts};
  };
  if (team) {
    for (int parts = 2; parts <= 4 && call.clusters; parts *= 2) consider(1, parts);
  } else {
    for (int turn = 1; turn <= 16 && turn < 2 * call.block_rows; turn *= 2) consider(turn, 1);
  }
  return best;
}

template <class Direction, class T, class Crew>
int launch_tile(Params params, const Schedule& how, const MatmulArgs& args) noexcept {
  constexpr int kSharedBytes = sizeof(SharedStorage<T>);
  const auto kernel = mma_dds_kernel<Direction, T, Crew>;
  static std::atomic<std::uint64_t> prepared{
      0};  // one bit per device; beyond 63 every launch sets the attributes again
  const std::uint64_t bit = args.device >= 0 && args.device < 64 ? std::uint64_t{1} << args.device : 0;
  if ((prepared.load(std::memory_order_relaxed) & bit) == 0) {
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    if (error == cudaSuccess) {
      error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared);
    }
    if (error != cudaSuccess) {
      cudaGetLastError();  // clear it for the next caller
      return error;
    }
    prepared.fetch_or(bit, std::memory_order_relaxed);
  }
  params.block_rows_in_turn = static_cast<unsigned>(how.block_rows_in_turn);
  params.parts = static_cast<unsigned>(how.parts);
  cudaLaunchConfig_t config{};
  // The grid is below 2^31 for every output that fits on a device: a thread block writes 512 elements or
  // more, and teams only run small calls.
  config.gridDim = static_cast<unsigned>(ceil_div(params.m, T::kTokens) *
                                         ceil_div(params.block_rows, params.block_rows_in_turn) * how.parts);
  config.blockDim = T::kThreads;
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = static_cast<cudaStream_t>(args.stream);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(how.parts), 1, 1};
  config.attrs = &cluster;
  config.numAttrs = how.parts > 1 ? 1 : 0;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<const Params&>(params));
  if (error != cudaSuccess) cudaGetLastError();  // clear it for the next caller
  return error;
}

template <class Direction, class Element, int kBlockRow>
int launch_block_row(const Params& params, const MatmulArgs& args, double reduction) noexcept {
  using Wide = typename Tiles<Element, kBlockRow>::Wide;
  using Middle = typename Tiles<Element, kBlockRow>::Middle;
  using Narrow = typename Tiles<Element, kBlockRow>::Narrow;
  const runtime::CudaDevice& device = runtime::cuda_device(args.device);
  // Only the sm_90 machine code supports clusters; code compiled from the sm_80 PTX does not.
  const Call call{
      params.m,       params.block_rows, reduction, std::max(device.multiprocessors, 1), device.shared_bytes,
      device.sm == 90};
  const Schedule wide = schedule<Wide>(call, false);
  const Schedule middle = std::is_same_v<Middle, Wide> ? Schedule{} : schedule<Middle>(call, false);
  const Schedule narrow = std::is_same_v<Narrow, Wide> ? Schedule{} : schedule<Narrow>(call, false);
  if constexpr (kBlockRow >= 64) {  // narrower block rows give enough thread blocks
    const Schedule team = schedule<Wide>(call, true);
    if (team.us < std::min({wide.us, middle.us, narrow.us}))
      return launch_tile<Direction, Wide, Team>(params, team, args);
  }
  if (wide.us <= std::min(middle.us, narrow.us))
    return launch_tile<Direction, Wide, Alone>(params, wide, args);
  if (middle.us <= narrow.us) return launch_tile<Direction, Middle, Alone>(params, middle, args);
  return launch_tile<Direction, Narrow, Alone>(params, narrow, args);
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
  params.residual = args.residual;
  params.residual_stride = args.residual_stride;
  params.out = args.out;
  params.m = args.m;
  params.a_width = dx ? index.rows : index.cols;
  params.a_stride = args.a_stride;
  params.out_width = dx ? index.cols : index.rows;
  params.out_stride = args.out_stride;
  params.block_rows = static_cast<unsigned>(dx ? index.block_cols() : index.block_rows());
  const int side = dx ? index.block.rows : index.block.cols;
  params.side_log2 = std::countr_zero(static_cast<unsigned>(side));
  params.activation = dx ? Activation::none : args.activation;
  params.copy_a = aligned(args.a, args.a_stride * kBytes, 16);
  params.copy_b = aligned(args.values, 0, 16);
  params.whole_width = params.a_width % side == 0;
  params.store_vectors = aligned(args.out, args.out_stride * kBytes, 4 * kBytes);
  if (params.m == 0 || params.block_rows == 0) return cudaSuccess;
  const double reduction = static_cast<double>(index.blocks) * side / params.block_rows;
  switch (dx ? index.block.cols : index.block.rows) {
    case 8: return launch_block_row<Direction, Element, 8>(params, args, reduction);
    case 16: return launch_block_row<Direction, Element, 16>(params, args, reduction);
    case 32: return launch_block_row<Direction, Element, 32>(params, args, reduction);
    case 64: return launch_block_row<Direction, Element, 64>(params, args, reduction);
    case 128: return launch_block_row<Direction, Element, 128>(params, args, reduction);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda::dds
