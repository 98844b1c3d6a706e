// The producers of a convolution's dW: those of a product (bsr_linear/sm90/wgmma/dw/produce.cuh), but X's
// boxes hold the pixels that meet a step's pixels of dY under the tap of a block.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bsr_conv/sm90/dw_wgmma/params.cuh"
#include "kernels/bsr_linear/sm90/wgmma/dw/produce.cuh"

namespace sparseloom::kernels::cuda::wgmma_conv_dw {

using wgmma::dw::Agenda, wgmma::dw::Ring;

/// The channel and tap of a box of X in one register, since a warp has up to seven boxes, and as many of the
/// next segment. A map has 8 bits for a tap along each of two axes, or 5 along each of three.
class BoxPlace {
 public:
  BoxPlace() = default;
  __device__ __forceinline__ BoxPlace(const wgmma_conv::PixelWalk& walk, std::int32_t box_of_channels,
                                      const ptx::TapOffset& tap)
      : bits_(static_cast<std::uint32_t>(box_of_channels) << 16 |
              (walk.deep ? std::uint32_t{tap.d} << 10 | std::uint32_t{tap.h} << 5 | tap.w
                         : std::uint32_t{tap.h} << 8 | tap.w)) {}
  /// Counted in boxes.
  __device__ __forceinline__ std::int32_t channels() const { return static_cast<std::int32_t>(bits_ >> 16); }
  __device__ __forceinline__ ptx::TapOffset tap(bool deep) const {
    const int bits = deep ? 5 : 8;
    const std::uint32_t mask = (1u << bits) - 1;
    const auto along = [&](int i) { return static_cast<std::uint16_t>(bits_ >> (bits * i) & mask); };
    return {along(0), along(1), deep ? along(2) : std::uint16_t{0}};
  }

 private:
  std::uint32_t bits_;
};

/// A warp's copies for each step of a segment. Producer warp i % kProducers copies box i of X.
template <class T>
struct Copies {
  wgmma::dw::Item item;
  wgmma::dw::Part part;
  BoxPlace box[T::kOwnBoxes];  // this warp's boxes of X
};

/// Finds the copies of the next segment; false: there are no more. Takes a few L2 latencies.
template <class T>
__device__ __forceinline__ bool find_copies(const Params& params, Agenda& agenda, wgmma::dw::Cursor& cursor,
                                            Copies<T>& copies) {
  if (!agenda.next(copies.part)) return false;
  copies.item = wgmma::dw::find_item(params, copies.part.item, cursor);
  const int warp = threadIdx.x / 32 % 4, boxes = (copies.item.blocks << params.bn_log2) / T::kBoxColumns;
#pragma unroll
  for (int i = 0; i < T::kOwnBoxes; ++i) {
    const int box = warp + i * T::kProducers, place = box * T::kBoxColumns;
    if (box >= boxes) continue;
    const std::int32_t block = copies.item.first + (place >> params.bn_log2);
    const std::int32_t channel =
        (block_column(params, block) << params.bn_log2) + (place & ((1 << params.bn_log2) - 1));
    copies.box[i] = {params.walk, channel / T::kBoxColumns,
                     wgmma_conv::tap_offset(params.walk, static_cast<unsigned>(block) % params.walk.taps)};
  }
  return true;
}

/// Issues TMA for a segment's steps from `step` up to but not including `end`. With kFirst it also writes the
/// segment's record beside the stage of its first step.
template <class T, bool kFirst>
__device__ __forceinline__ void start_copies(const Params& params, const Copies<T>& copies, std::int32_t step,
                                             std::int32_t end, Ring& ring, const Agenda& agenda,
                                             wgmma::dw::Record* records) {
  const int warp = threadIdx.x / 32 % 4, boxes = (copies.item.blocks << params.bn_log2) / T::kBoxColumns;
  const int own_dy = T::kProducers - 1 - warp;  // the last warps have fewer boxes of X, so they copy dY
  std::uint32_t bytes = own_dy < T::kDyBoxes ? T::kDyBoxBytes : 0;
#pragma unroll
  for (int i = 0; i < T::kOwnBoxes; ++i) bytes += warp + i * T::kProducers < boxes ? T::kXBoxBytes : 0;
  std::int32_t row = (copies.part.first + step) * T::kStepRows;
#pragma unroll 1
  for (; step < end; ++step, row += T::kStepRows) {
    const ptx::BasePixel pixel = wgmma_conv::base_pixel(params.walk, row);
    ring.await();
    if (ptx::elect_lane()) {
      const std::uint32_t full = ring.pipeline.full(ring.stage),
                          to = ring.stages + ring.stage * ring.stage_bytes;
      if (kFirst && step == 0 && warp == 0) {
        const wgmma::dw::Item& item = copies.item;
        const wgmma::dw::Part& part = copies.part;
        records[ring.stage] = {item.row, item.first, item.blocks, part.steps, part.slot, agenda.others(part)};
      }
      Pipeline::expect(full, bytes);
      if (own_dy < T::kDyBoxes) {
        T::Element::load(to + own_dy * T::kDyBoxBytes, &params.dy,
                         copies.item.row * T::kRows + own_dy * T::kDyBoxColumns, row, full);
      }
#pragma unroll
      for (int i = 0; i < T::kOwnBoxes; ++i) {
        const int box = warp + i * T::kProducers;
        if (box < boxes)
          wgmma_conv::load_pixels(to + T::kDyBytes + box * T::kXBoxBytes, &params.x, params.walk,
                                  copies.box[i].channels() * T::kBoxColumns, pixel,
                                  copies.box[i].tap(params.walk.deep), full, ptx::L2Policy::evict_normal);
      }
    }
    __syncwarp();
    ring.advance();
  }
}

/// The loop of one of the four producer warps.
template <class T>
__device__ __forceinline__ void produce(const Params& params, wgmma::dw::SharedStorage<T>& shared) {
  Ring ring{{shared.full, shared.empty}, ptx::shared_address(shared.ring), params.stage_bytes, params.stages};
  const std::int32_t grid = static_cast<std::int32_t>(gridDim.x);
  Agenda agenda(wgmma::dw::cut_items(wgmma::dw::count_items(params), grid, params.steps),
                static_cast<std::int32_t>(blockIdx.x), grid, params.steps);
  wgmma::dw::Cursor cursor;
  Copies<T> copies;
  bool more = find_copies<T>(params, agenda, cursor, copies);
#pragma unroll 1
  while (more) {
    // Fill the ring, then find the next segment while the ring is full.
    const std::int32_t ahead = min(copies.part.steps, ring.count);
    start_copies<T, true>(params, copies, 0, ahead, ring, agenda, shared.records);
    Copies<T> next;
    more = find_copies<T>(params, agenda, cursor, next);
    start_copies<T, false>(params, copies, ahead, copies.part.steps, ring, agenda, shared.records);
    copies = next;
  }
  // Tell the consumers that there are no more segments.
  ring.await();
  if (ptx::elect_lane()) {
    if (threadIdx.x / 32 % 4 == 0) shared.records[ring.stage].blocks = 0;
    Pipeline::expect(ring.pipeline.full(ring.stage), 0);
  }
  __syncwarp();
}

}  // namespace sparseloom::kernels::cuda::wgmma_conv_dw
