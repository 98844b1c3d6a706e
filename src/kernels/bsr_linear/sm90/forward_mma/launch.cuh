// The host side of mma_dds: it encodes the tensor maps, sizes the ring, and launches the kernel.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/bsr_linear/sm90/forward_mma/entry.h"
#include "kernels/bsr_linear/sm90/forward_mma/kernel.cuh"
#include "kernels/bsr_linear/sm90/forward_mma/operands.h"
#include "kernels/bsr_linear/sm90/operands/tensor_map.h"
#include "kernels/shared/early_launch.cuh"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::mma_dds {

/// Chooses the slots of a stage, then as many stages as fit. Blocks are assumed to lie at random; the slots
/// hold five standard deviations more blocks than the mean K tile, since a single K tile with more blocks
/// makes all K tiles take two stages. Each producer needs at least one stage: with fewer, a producer that is
/// ahead would take the end of the phase before last for the one it waits for.
template <class T>
void cut_ring(Params& params, double density, int bytes) {
  const double mean = T::kMostSlots * density;
  const int likely = static_cast<int>(mean + 5 * std::sqrt(mean * (1 - density)) + 2);
  const int most = (bytes / T::kProducers - T::kXBytes) / T::kSlotBytes / 2 * 2;
  params.slots = std::clamp(likely + likely % 2, T::kLeastSlots, std::min(most, T::kMostSlots));
  params.stages = std::min(bytes / (T::kXBytes + params.slots * T::kSlotBytes), T::kMostStages);
}

template <class Direction, class Element>
int launch(const MatmulArgs& args) noexcept {
  using T = Tile<Direction, Element>;
  constexpr bool dx = T::kIsDx;
  const IndexView& index = args.index;
  if (index.block != BlockShape{kSide, kSide}) return cudaErrorInvalidValue;
  const auto ceil_div = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t out_width = dx ? index.cols : index.rows;
  if (args.m == 0 || out_width == 0) return cudaSuccess;
  // The row refuses what TMA and cp.async cannot address.
  const Operands operands(args);
  if (!operands.possible() || reinterpret_cast<std::uintptr_t>(args.values) % 16 != 0)
    return cudaErrorInvalidValue;
  Params params{};
  params.list_begin = dx ? args.transposed.ccol : index.crow;
  params.list_end = args.block_row_end != nullptr ? args.block_row_end : params.list_begin + 1;
  params.along = dx ? args.transposed.row : index.col;
  params.slot = dx ? args.transposed.slot : nullptr;
  params.values = static_cast<const std::byte*>(args.values);
  params.bias = dx ? nullptr : args.bias;
  params.block_rows = static_cast<std::int32_t>(dx ? index.block_cols() : index.block_rows());
  params.out_width = static_cast<std::int32_t>(out_width);
  params.k_tiles = static_cast<std::int32_t>(ceil_div(operands.x.width, T::kKTile));
  params.activation = dx ? Activation::none : args.activation;
  params.store_pre = operands.pre.data != nullptr;
  params.add_residual = operands.residual.data != nullptr;
  const std::int64_t m_tiles = ceil_div(args.m, T::kTokens),
                     groups = ceil_div(params.block_rows, T::kBlockRows);
  if (m_tiles * groups >= std::int64_t{1} << 31) return cudaErrorInvalidValue;
  params.groups = static_cast<unsigned>(groups);
  params.tiles = static_cast<unsigned>(m_tiles * groups);
  params.rotated = args.uneven_groups;

  // An output that would fill much of L2 is evicted first.
  const runtime::CudaDevice& device = runtime::cuda_device(args.device);
  params.x_policy = ptx::L2Policy::evict_normal;
  params.out_policy = args.m * out_width * 2 > static_cast<std::int64_t>(device.l2_bytes / 4)
                          ? ptx::L2Policy::evict_first
                          : ptx::L2Policy::evict_normal;
  // Size the ring: it gets what the front and the table leave of shared memory.
  constexpr int kAll = 227 * 1024;
  const int table_bytes = table_words<T>(params.k_tiles) * 4;
  const std::int64_t stored = args.likely_blocks > 0 ? args.likely_blocks : index.blocks;
  const double cells = static_cast<double>(index.block_rows()) * static_cast<double>(index.block_cols());
  cut_ring<T>(params, std::min(1.0, static_cast<double>(stored) / cells),
              kAll - kFrontBytes<T> - table_bytes);
  constexpr TensorMapBox kOutBox{T::kStoreTokens, T::kStoreColumns, T::kStoreRowBytes};
  if (!encode_tensor_map(params.x, operands.x, {T::kTokens, T::kKTile, 128}) ||
      !encode_tensor_map(params.out, operands.out, kOutBox) ||
      (params.store_pre && !encode_tensor_map(params.pre, operands.pre, kOutBox)) ||
      (params.add_residual && !encode_tensor_map(params.residual, operands.residual, kOutBox))) {
    return cudaErrorInvalidValue;
  }
  if (const cudaError_t status = allow_shared_memory<mma_dds_kernel<T>>(kAll, args.device);
      status != cudaSuccess)
    return status;
  const auto multiprocessors = static_cast<unsigned>(std::max(1, device.multiprocessors));
  // The smallest grid that still takes the fewest rounds. It often divides into whole M tiles, so that each
  // thread block keeps one group of block rows.
  const unsigned rounds = (params.tiles + multiprocessors - 1) / multiprocessors,
                 grid = (params.tiles + rounds - 1) / rounds;
  return launch_kernel({.grid = grid,
                        .block = T::kThreads,
                        .shared_bytes = kAll,
                        .stream = static_cast<cudaStream_t>(args.stream),
                        .early = params.tiles <= multiprocessors},
                       mma_dds_kernel<T>, params);
}

}  // namespace sparseloom::kernels::cuda::mma_dds
