// The host side of sm90_mma: it encodes the tensor maps, lays out the ring that the schedule names, and
// launches the kernel.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/bsr_linear/sm90/mma/entry.h"
#include "kernels/bsr_linear/sm90/mma/kernel.cuh"
#include "kernels/bsr_linear/sm90/mma/operands.h"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/operands/tensor_map.h"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda::sm90_mma {

template <class Direction, class Element>
int launch(const MatmulArgs& args, const Schedule& schedule) noexcept {
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

  // An output that would fill much of L2 is marked evict-first.
  const runtime::CudaDevice& device = runtime::cuda_device(args.device);
  params.x_policy = ptx::L2Policy::evict_normal;
  params.out_policy = args.m * out_width * 2 > static_cast<std::int64_t>(device.l2_bytes / 4)
                          ? ptx::L2Policy::evict_first
                          : ptx::L2Policy::evict_normal;
  // The ring has to fit, and the producers rely on ring_of's guarantees.
  params.slots = schedule.slots, params.stages = schedule.stages;
  const std::int64_t bytes =
      kRingBegin + std::int64_t{table_words(params.k_tiles)} * 4 +
      std::int64_t{params.stages} * (kXBytes + std::int64_t{params.slots} * kSlotBytes);
  if (params.slots < kLeastSlots || params.slots % 2 != 0 || params.stages < kProducers ||
      params.stages > kMostStages || bytes > kSharedBytes || schedule.grid < 1)
    return cudaErrorInvalidValue;
  constexpr TensorMapBox kOutBox{T::kStoreTokens, T::kStoreColumns, T::kStoreRowBytes};
  if (!encode_tensor_map(params.x, operands.x, {T::kTokens, T::kKTile, 128}) ||
      !encode_tensor_map(params.out, operands.out, kOutBox) ||
      (params.store_pre && !encode_tensor_map(params.pre, operands.pre, kOutBox)) ||
      (params.add_residual && !encode_tensor_map(params.residual, operands.residual, kOutBox))) {
    return cudaErrorInvalidValue;
  }
  if (const cudaError_t status = allow_shared_memory<sm90_mma_kernel<T>>(kSharedBytes, args.device);
      status != cudaSuccess)
    return status;
  const unsigned grid = std::min(params.tiles, static_cast<unsigned>(schedule.grid));
  return launch_kernel({.grid = grid,
                        .block = T::kThreads,
                        .shared_bytes = kSharedBytes,
                        .stream = static_cast<cudaStream_t>(args.stream),
                        .early = params.tiles <= grid},
                       sm90_mma_kernel<T>, params);
}

}  // namespace sparseloom::kernels::cuda::sm90_mma
