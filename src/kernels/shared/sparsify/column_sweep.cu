// A warp for each row: lane l holds columns l, 32 + l, 64 + l and 96 + l, so that an element that was removed
// reaches the others by a shuffle, and a row of the factor is read from L1, which holds all 64 KiB of it.
#include <cuda_runtime.h>

#include <cstdint>

#include "core/check.h"
#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/sparsify/sparsify.h"
#include "sparsifiers/sweep_grid.h"

namespace sparseloom::kernels::cuda {
namespace {

constexpr int kLanes = 32, kWarps = 8, kSlots = static_cast<int>(kSweepColumns) / kLanes;
constexpr unsigned kAll = 0xffffffffu;

struct Row {
  float w[kSlots], diagonal[kSlots], error[kSlots];
  unsigned keep[kSlots];  // a bit for each lane
};

// Chooses the group whose first column is that of `first` in slot `slot`; it may go on in the next slot.
__device__ void choose(Row& row, int slot, int first, int size, int n, int lane) {
  const int from = (lane + first) % kLanes, next = slot + 1 < kSlots ? slot + 1 : slot;
  float w = 0, diagonal = 1;
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    const float here = __shfl_sync(kAll, row.w[s], from), its = __shfl_sync(kAll, row.diagonal[s], from);
    if (s == (first + lane < kLanes ? slot : next)) w = here, diagonal = its;
  }
  const float error = w / diagonal, cost = error * error;
  int before = 0;
  for (int other = 0; other < size; ++other) {
    const float its = __shfl_sync(kAll, cost, other);
    before += its > cost || (its == cost && other < lane);
  }
  const unsigned stays = __ballot_sync(kAll, lane < size && before < n);
  const std::uint64_t group = ((std::uint64_t{1} << size) - 1) << first,
                      bits = static_cast<std::uint64_t>(stays) << first;
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    if (s == slot) row.keep[s] = (row.keep[s] & ~static_cast<unsigned>(group)) | static_cast<unsigned>(bits);
    if (s == slot + 1)
      row.keep[s] = (row.keep[s] & ~static_cast<unsigned>(group >> 32)) | static_cast<unsigned>(bits >> 32);
  }
}

__global__ void __launch_bounds__(kLanes* kWarps) column_sweep_kernel(ColumnSweep sweep) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kLanes;
  if (at >= sweep.rows) return;
  const int cols = static_cast<int>(sweep.cols), m = static_cast<int>(sweep.m);
  float* const weights = sweep.weights + at * sweep.stride;
  bool* const mask = sweep.mask + at * cols;
  float* const errors = sweep.errors + at * cols;
  const bool rounds = sweep.grid != SweepGrid::none;
  const sparsifiers::RowGrid grid(sweep.grid, rounds ? sweep.tops[at] : 0.0f);
  const int pin = rounds ? sweep.pins[at] : -1;
  Row row;
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    const int c = s * kLanes + lane;
    const bool inside = c < cols;
    row.w[s] = inside ? weights[c] : 0.0f;
    row.diagonal[s] = inside ? sweep.factor[c * sweep.factor_stride + c] : 1.0f;
    row.error[s] = 0.0f;
    row.keep[s] = __ballot_sync(kAll, inside && m == 0 && mask[c]);
  }
#pragma unroll
  for (int s = 0; s < kSlots; ++s)
    for (int l = 0; l < kLanes && s * kLanes + l < cols; ++l) {
      const int j = s * kLanes + l;
      if (m > 0 && j % m == 0) choose(row, s, l, min(m, cols - j), static_cast<int>(sweep.n), lane);
      const bool stays = (row.keep[s] >> l & 1u) != 0;
      if (stays && !rounds) continue;
      const float w = __shfl_sync(kAll, row.w[s], l), value = stays ? grid.nearest(w, pin == j) : 0.0f;
      const float error = (w - value) / __shfl_sync(kAll, row.diagonal[s], l);
      const float* const u = sweep.factor + j * sweep.factor_stride;
#pragma unroll
      for (int k = s; k < kSlots; ++k) {
        const int c = k * kLanes + lane;
        if (c > j && c < cols) row.w[k] -= error * __ldg(u + c);
      }
      if (lane == l) row.error[s] = error, row.w[s] = value;
    }
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    const int c = s * kLanes + lane;
    if (c >= cols) continue;
    weights[c] = row.w[s], errors[c] = row.error[s];
    if (m > 0) mask[c] = (row.keep[s] >> lane & 1u) != 0;
  }
}

}  // namespace

int sm80_column_sweep(const ColumnSweep& sweep, void* stream) noexcept {
  const LaunchShape shape{.grid = static_cast<unsigned>(core::ceil_div(sweep.rows, std::int64_t{kWarps})),
                          .block = kLanes * kWarps,
                          .stream = static_cast<cudaStream_t>(stream)};
  return launch_kernel(shape, column_sweep_kernel, sweep);
}

}  // namespace sparseloom::kernels::cuda
