// The norms between steps, and their gradient.
//
//   unit_norm_kernel, means_kernel: a thread block per group of a row. It reads the row twice; the second
//   read hits L1. spread_kernel: columns of four units per thread, and a share of the rows for each
//   blockIdx.y. The sums of weight and bias are in registers over those rows, so that no atomics are
//   needed, and their order is fixed.
#include "kernels/recurrent/sm80/cells.h"
#include "kernels/recurrent/sm80/lanes.cuh"

namespace sparseloom::kernels::cuda {
namespace recurrent {

#define SPARSELOOM_NORM __device__ __forceinline__
#include "kernels/recurrent/norm-inl.h"
#undef SPARSELOOM_NORM

constexpr int kRows = 4;           // rows of spread_kernel in flight
constexpr int kMostThreads = 768;  // threads of the others; 1024 threads with 64 registers spill

/// Adds up two numbers over the thread block; every thread gets the sums.
__device__ __forceinline__ float2 block_sums(float2 mine) {
  __shared__ float2 warps[32];
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) {
    mine.x += __shfl_xor_sync(0xffffffffu, mine.x, lane);
    mine.y += __shfl_xor_sync(0xffffffffu, mine.y, lane);
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
  __syncthreads();
  float2 sums{0.0f, 0.0f};
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sums.x += warps[warp].x, sums.y += warps[warp].y;
  return sums;
}

/// The extra numbers of some units in a row: their indices, or -1.
template <int kUnits>
struct Slots {
  std::int32_t at[kUnits];
  __device__ __forceinline__ void find(std::int64_t unit, std::int64_t stride, bool any) {
    std::int64_t slot = 0, past = 0;  // units past the last one reached
    if (any) {
      slot = static_cast<std::uint32_t>(unit) / static_cast<std::uint32_t>(stride);
      past = unit - slot * stride;
    }
#pragma unroll
    for (int e = 0; e < kUnits; ++e) {
      at[e] = any && past == 0 ? static_cast<std::int32_t>(slot) : -1;
      if (++past == stride) past = 0, ++slot;
    }
  }
};

template <class Element, int kUnits>
struct Operands {
  Units<Element, kUnits> weight, bias;
  Slots<kUnits> slots;
  __device__ __forceinline__ void load(const UnitNorm& norm, std::int64_t group, std::int64_t unit) {
    weight.load(norm.weight, group * norm.hidden + unit), bias.load(norm.bias, group * norm.hidden + unit);
    slots.find(unit, norm.stride, norm.extra != nullptr && group == norm.group);
  }
};

template <class Element>
__device__ __forceinline__ float extra_of(const UnitNorm& norm, std::int64_t at) {
  return Element::to_f32(static_cast<const typename Element::Bits*>(norm.extra)[at]) *
         static_cast<float>(norm.scale);
}
__device__ __forceinline__ std::int64_t extras(const UnitNorm& norm) {
  return (norm.hidden + norm.stride - 1) / norm.stride;
}

/// The offset of a unit of a group in a row of z and dz.
__device__ __forceinline__ std::int64_t place_of(const UnitNorm& norm, std::int64_t group,
                                                 std::int64_t unit) {
  if (norm.side == 0) return group * norm.hidden + unit;
  const auto at = static_cast<std::uint32_t>(unit), side = static_cast<std::uint32_t>(norm.side);
  const std::uint32_t before = at / side * side;
  return std::int64_t{before} * norm.groups + group * norm.side + (at - before);
}

template <class Element, int kUnits>
__global__ void __launch_bounds__(kMostThreads) unit_norm_kernel(const __grid_constant__ UnitNorm norm) {
  const std::int64_t pair = blockIdx.x, row = pair / norm.groups, group = pair % norm.groups;
  const std::int64_t begin = pair * norm.hidden, step = std::int64_t{blockDim.x} * kUnits;
  const std::int64_t first = std::int64_t{threadIdx.x} * kUnits, from = row * norm.groups * norm.hidden;
  Units<Element, 1> origin;  // sums around it lose no precision if the mean is far from zero
  origin.load(norm.z, from + place_of(norm, group, 0));
  float2 sums{0.0f, 0.0f};
#pragma unroll 4
  for (std::int64_t unit = first; unit < norm.hidden; unit += step) {
    Units<Element, kUnits> z;
    z.load(norm.z, from + place_of(norm, group, unit));
#pragma unroll
    for (int e = 0; e < kUnits; ++e) {
      const float x = z.x[e] - origin.x[0];
      sums.x += x, sums.y = fmaf(x, x, sums.y);
    }
  }
  sums = block_sums(sums);
  const float count = static_cast<float>(norm.hidden), shift = sums.x / count;
  const float mean = origin.x[0] + shift;
  const float inverse = rsqrtf(fmaxf(0.0f, sums.y / count - shift * shift) + static_cast<float>(norm.eps));
  if (norm.statistics != nullptr && threadIdx.x == 0)
    static_cast<float2*>(norm.statistics)[pair] = make_float2(mean, inverse);
  const std::int64_t slot = row * extras(norm);
#pragma unroll 2
  for (std::int64_t unit = first; unit < norm.hidden; unit += step) {
    Operands<Element, kUnits> of;
    Units<Element, kUnits> y;
    y.load(norm.z, from + place_of(norm, group, unit)), of.load(norm, group, unit);
#pragma unroll
    for (int e = 0; e < kUnits; ++e) {
      const bool reached = of.slots.at[e] >= 0;
      const float extra = reached ? extra_of<Element>(norm, slot + of.slots.at[e]) : 0.0f;
      const float value =
          norm_value((y.x[e] - mean) * inverse, of.weight.x[e], of.bias.x[e], reached, norm.multiply, extra);
      y.x[e] = norm.relu && value < 0.0f ? 0.0f : value;
    }
    y.store(norm.y, begin + unit);
  }
}

/// The two means over a group that the gradient of z subtracts, and the gradient of the extra numbers.
template <class Element, int kUnits>
__global__ void __launch_bounds__(kMostThreads) means_kernel(const __grid_constant__ UnitNormGradient of) {
  const UnitNorm& norm = of.norm;
  const std::int64_t pair = blockIdx.x, row = pair / norm.groups, group = pair % norm.groups;
  const std::int64_t begin = pair * norm.hidden, step = std::int64_t{blockDim.x} * kUnits;
  const float2 known = static_cast<const float2*>(norm.statistics)[pair];
  const std::int64_t slot = row * extras(norm), from = row * norm.groups * norm.hidden;
  float2 sums{0.0f, 0.0f};
#pragma unroll 2
  for (std::int64_t unit = std::int64_t{threadIdx.x} * kUnits; unit < norm.hidden; unit += step) {
    Units<Element, kUnits> z, dy;
    Operands<Element, kUnits> with;
    z.load(norm.z, from + place_of(norm, group, unit)), dy.load(of.dy, begin + unit),
        with.load(norm, group, unit);
#pragma unroll
    for (int e = 0; e < kUnits; ++e) {
      const bool reached = with.slots.at[e] >= 0;
      const float extra = reached ? extra_of<Element>(norm, slot + with.slots.at[e]) : 0.0f;
      const float normal = (z.x[e] - known.x) * known.y;
      const NormSlope<float> slope = norm_slope(dy.x[e], normal, with.weight.x[e], with.bias.x[e], reached,
                                                norm.multiply, extra, norm.relu);
      if (reached && of.dextra != nullptr)
        static_cast<typename Element::Bits*>(of.dextra)[slot + with.slots.at[e]] =
            Element::from_f32(slope.extra * static_cast<float>(norm.scale));
      const float x = slope.before * with.weight.x[e];
      sums.x += x, sums.y = fmaf(x, normal, sums.y);
    }
  }
  sums = block_sums(sums);
  const float count = static_cast<float>(norm.hidden);
  if (threadIdx.x == 0) static_cast<float2*>(of.means)[pair] = make_float2(sums.x / count, sums.y / count);
}

template <class Element, int kUnits>
__global__ void __launch_bounds__(kThreads) spread_kernel(const __grid_constant__ UnitNormGradient of) {
  const UnitNorm& norm = of.norm;
  const std::int64_t unit = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kUnits;
  const std::int64_t part = blockIdx.y, group = blockIdx.z;
  if (unit >= norm.hidden) return;
  Operands<Element, kUnits> with;
  with.load(norm, group, unit);
  Units<row::F32, kUnits> dweight{}, dbias{};
  const std::int64_t place = place_of(norm, group, unit), columns = norm.groups * norm.hidden;
  for (std::int64_t row = part; row < norm.n; row += kRows * kUnitNormParts) {
    Units<Element, kUnits> z[kRows], dy[kRows];
    float2 known[kRows], means[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      // rows past the last one read the first, and are neither summed nor stored
      const std::int64_t at = row + r * kUnitNormParts, pair = (at < norm.n ? at : row) * norm.groups + group;
      z[r].load(norm.z, (at < norm.n ? at : row) * columns + place),
          dy[r].load(of.dy, pair * norm.hidden + unit);
      known[r] = static_cast<const float2*>(norm.statistics)[pair];
      means[r] = static_cast<const float2*>(of.means)[pair];
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t at = row + r * kUnitNormParts;
      if (at >= norm.n) break;
#pragma unroll
      for (int e = 0; e < kUnits; ++e) {
        const bool reached = with.slots.at[e] >= 0;
        const float extra = reached ? extra_of<Element>(norm, at * extras(norm) + with.slots.at[e]) : 0.0f;
        const float normal = (z[r].x[e] - known[r].x) * known[r].y;
        const NormSlope<float> slope = norm_slope(dy[r].x[e], normal, with.weight.x[e], with.bias.x[e],
                                                  reached, norm.multiply, extra, norm.relu);
        dweight.x[e] = fmaf(slope.before, normal, dweight.x[e]), dbias.x[e] += slope.before;
        dy[r].x[e] = known[r].y * (slope.before * with.weight.x[e] - means[r].x - normal * means[r].y);
      }
      dy[r].store(of.dz, at * columns + place);
    }
  }
  if (of.sums == nullptr) return;
  const std::int64_t at = part * 2 * columns + group * norm.hidden + unit;
  dweight.add(of.sums, at), dbias.add(of.sums, at + columns);
  dweight.store(of.sums, at), dbias.store(of.sums, at + columns);
}

/// Thread blocks for groups of rows: whole warps, as many as the units occupy.
LaunchShape by_rows(const UnitNorm& norm, bool four, void* stream) {
  const std::int64_t vectors = norm.hidden / (four ? 4 : 1);
  const std::int64_t threads = std::clamp<std::int64_t>((vectors + 31) / 32 * 32, 32, kMostThreads);
  return {.grid = dim3(static_cast<unsigned>(norm.n * norm.groups)),
          .block = dim3(static_cast<unsigned>(threads)),
          .stream = static_cast<cudaStream_t>(stream)};
}

/// Whether every row of every matrix is a whole number of vectors of four units.
bool in_fours(const UnitNorm& norm, std::initializer_list<const void*> matrices) {
  return norm.hidden % 4 == 0 && norm.side % 4 == 0 &&
         std::all_of(matrices.begin(), matrices.end(),
                     [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; });
}

/// `kernel` for the norm's dtype, with four units per thread or one.
#define SPARSELOOM_NORM_KERNEL(kernel, norm, four)                                     \
  ((norm).dtype == DType::f32   ? ((four) ? kernel<row::F32, 4> : kernel<row::F32, 1>) \
   : (norm).dtype == DType::f16 ? ((four) ? kernel<row::F16, 4> : kernel<row::F16, 1>) \
                                : ((four) ? kernel<row::Bf16, 4> : kernel<row::Bf16, 1>))

}  // namespace recurrent

int sm80_unit_norm(const UnitNorm& norm, void* stream) noexcept {
  using namespace recurrent;
  const bool four = in_fours(norm, {norm.z, norm.weight, norm.bias, norm.y});
  return launch_kernel(by_rows(norm, four, stream), SPARSELOOM_NORM_KERNEL(unit_norm_kernel, norm, four),
                       norm);
}

int sm80_unit_norm_gradient(const UnitNormGradient& of, void* stream) noexcept {
  using namespace recurrent;
  const UnitNorm& norm = of.norm;
  const bool four = in_fours(norm, {norm.z, norm.weight, norm.bias, of.dy, of.dz, of.sums});
  const cudaError_t status =
      launch_kernel(by_rows(norm, four, stream), SPARSELOOM_NORM_KERNEL(means_kernel, norm, four), of);
  if (status != cudaSuccess) return status;
  const std::int64_t per_block = std::int64_t{kThreads} * (four ? 4 : 1);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>((norm.hidden + per_block - 1) / per_block),
                                       static_cast<unsigned>(std::min(kUnitNormParts, norm.n)),
                                       static_cast<unsigned>(norm.groups)),
                          .block = kThreads,
                          .stream = static_cast<cudaStream_t>(stream)};
  return launch_kernel(shape, SPARSELOOM_NORM_KERNEL(spread_kernel, norm, four), of);
}

}  // namespace sparseloom::kernels::cuda
