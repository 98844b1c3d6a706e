// Host side of sm90_decode_lines: chooses the number of warps and the instance, and launches.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/bsr_linear/sm90/decode/entry.h"
#include "kernels/bsr_linear/sm90/decode/host.cuh"
#include "kernels/bsr_linear/sm90/decode_rows/narrow.cuh"
#include "kernels/bsr_linear/sm90/decode_rows/wide.cuh"
#include "kernels/bsr_linear/sm90/decode_x_streamed/launch.cuh"

namespace sparseloom::kernels::cuda::decode90::rows {

/// The strips of a thread block, and the warps of each.
struct Cut {
  int strips, warps;
};

/// Divides all warps that a multiprocessor has room for among the strips that it gets. Each strip gets a
/// thread block of its own, which was measured faster at low density than one thread block for all of them.
/// The exception: if the registers of a multiprocessor hold more thread blocks than it should get, the thread
/// blocks of the next launch, which start while these leave, gather on the multiprocessors that have room
/// first (measured slower). If there are too many strips for two warps each, thread blocks of four warps take
/// turns.
template <class C>
Cut cut_of(std::int64_t strips, int multiprocessors, int registers) {
  constexpr int kRegisters = 65536;
  const auto each = static_cast<int>(std::min<std::int64_t>(ceil_div(strips, multiprocessors), C::kWarps));
  if (each > C::kWarps / 2) return {1, 4};
  const int warps = C::kWarps / each, room = kRegisters / (std::max(registers, 8) * 32 * warps);
  return {room > each ? each : 1, warps};
}

/// Prefetches 9 MB of W over all strips, but at most 24 KB of one, in one request of each warp. 8 KB of a
/// strip were measured slower at densities up to .2.
template <class C>
Guess guess_of(const Params& params, std::int64_t strips, int warps) {
  const int bytes = static_cast<int>(std::min<std::int64_t>(24576, (std::int64_t{9} << 20) / strips));
  const int unit_bytes = C::kRows * 2 << params.bn_log2;
  Guess guess;
  guess.row_blocks_32 =
      (static_cast<std::uint64_t>(params.blocks) << 32) / static_cast<std::uint64_t>(params.block_rows);
  const auto row_blocks = static_cast<int>(guess.row_blocks_32 >> 32);
  // If a block row has several strips, a strip's units of two blocks are not contiguous.
  guess.units = params.strips_log2 > 0 ? 1 : std::max(1, std::min(bytes / unit_bytes, row_blocks) / warps);
  guess.warps = std::min({warps, bytes / (guess.units * unit_bytes), std::max(row_blocks, 1)});
  return guess;
}

template <class C, template <class> class Walk>
int launch_instance(const Params& params, const MatmulArgs& args) noexcept {
  constexpr auto kKernel = &decode_row_kernel<C, Walk>;
  constexpr int kWarpBytes = C::kWarpBytes + 8 * C::kStages;
  if (const cudaError_t status = allow_shared_memory<kKernel>(C::kWarps * kWarpBytes, args.device);
      status != cudaSuccess)
    return status;
  const std::int64_t strips = std::int64_t{params.block_rows} << params.strips_log2;
  const Cut cut =
      cut_of<C>(strips, runtime::cuda_device(args.device).multiprocessors, registers_of<kKernel>());
  return launch_kernel(
      {.grid = static_cast<unsigned>(ceil_div(strips, cut.strips)),
       .block = dim3(static_cast<unsigned>(32 * cut.warps), static_cast<unsigned>(cut.strips)),
       .shared_bytes = static_cast<std::size_t>(cut.strips * cut.warps * kWarpBytes),
       .stream = static_cast<cudaStream_t>(args.stream),
       .early = true},
      kKernel, params, guess_of<C>(params, strips, cut.warps));
}

template <class Mma, bool kWide>
int launch_tokens(const Params& params, const MatmulArgs& args) noexcept {
  if (args.m <= 8) return launch_instance<Config<Mma, kWide, 1>, WideWalk>(params, args);
  if (args.m <= 16) return launch_instance<Config<Mma, kWide, 2>, WideWalk>(params, args);
  if (args.m <= 32) return launch_instance<Config<Mma, kWide, 4>, WideWalk>(params, args);
  return launch_instance<Config<Mma, kWide, 8>, WideWalk>(params, args);
}

template <class Mma>
int launch_narrow(const Params& params, const MatmulArgs& args) noexcept {
  const std::int64_t pairs = runtime::cuda_device(args.device).multiprocessors / 2;
  if (x_streamed::passes(args.m, params.rows, params.cols, params.blocks, pairs))
    return x_streamed::launch<Mma>(params, args, pairs);
  if (args.m <= 8) return launch_instance<NarrowConfig<Mma, 1>, NarrowWalk>(params, args);
  if (args.m <= 16) return launch_instance<NarrowConfig<Mma, 2>, NarrowWalk>(params, args);
  return launch_instance<NarrowConfig<Mma, 4>, NarrowWalk>(params, args);
}

template <class Mma>
int launch(const MatmulArgs& args) noexcept {
  const IndexView& index = args.index;
  Params params{};
  if (index.cols % 8 != 0 || !fill(params, args)) return cudaErrorInvalidValue;
  if (index.block.cols == 16) return launch_narrow<Mma>(params, args);
  if (index.block.cols == 32) return launch_tokens<Mma, false>(params, args);
  return encode_values(params.w, args) ? launch_tokens<Mma, true>(params, args) : cudaErrorInvalidValue;
}

}  // namespace sparseloom::kernels::cuda::decode90::rows
