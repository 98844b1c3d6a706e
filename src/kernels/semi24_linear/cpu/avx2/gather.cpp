// avx2_gather: forward of 2:4 weights, up to 96 tokens on the lanes, in fp32. Two loads a cycle are the
// bound: an FMA reads its x from L1, and no other row of W reads the same columns.
#if defined(__x86_64__)

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/check.h"
#include "kernels/semi24_linear/cpu/ops.h"
#include "kernels/shared/cpu/cell.h"
#include "kernels/shared/cpu/intrinsics.h"
#include "kernels/shared/cpu/tile.h"

// clang-format off
// The order is the meaning: each of these uses the one before.
#include "kernels/shared/cpu/avx2/begin.h"
namespace {
#include "kernels/shared/cpu/unroll-inl.h"
#include "kernels/shared/cpu/avx2/simd.h"
#include "kernels/shared/cpu/avx2/vector.h"
#include "kernels/shared/cpu/chain-inl.h"
#include "kernels/semi24_linear/cpu/generic/tokens-inl.h"
#include "kernels/semi24_linear/cpu/generic/add_row-inl.h"
// clang-format on

static_assert(kLanes == cpu::kTokenLanes);
// Outputs per unit of work, whose sums stay in L1 beside a block of columns of x.
constexpr std::int64_t kOutputs = 32;
// Most bytes of x in one block of columns, which stay in L1 for a unit of outputs, and in one slab of
// columns, which stay in L2 for a tile of units.
constexpr std::int64_t kBlockBytes = 24 << 10, kSlabBytes = 256 << 10, kTileRows = 8 * kOutputs;
constexpr std::int64_t kGroupBytes = 4 * kLanes * cpu::kCellBytes;  // of one vector of tokens
constexpr std::int64_t kMostGroups = kBlockBytes / kGroupBytes, kMostSlabGroups = kSlabBytes / kGroupBytes;

// The groups [begin, end) of `outputs` rows from `output` on, for a panel's x.
template <class T, int kVectors>
void add_unit(const cpu::PackedJob& job, const float* x, std::int64_t output, std::int64_t outputs,
              std::int64_t begin, std::int64_t end, float* sums) {
  constexpr std::int64_t kTokens = kVectors * kLanes, kBlock = kMostGroups / kVectors / 2 * 2;
  static_assert(kBlock >= 2);
  const Semi24View& w = job.w;
  alignas(32) float wide[2 * kBlock + kLanes];
  for (std::int64_t g = begin; g < end; g += kBlock) {
    const std::int64_t count = std::min(kBlock, end - g);
    for (std::int64_t o = 0; o < outputs; ++o) {
      const T* const values = static_cast<const T*>(job.args.values) + (output + o) * w.row_values() + 2 * g;
      const std::uint8_t* const positions = w.positions + (output + o) * w.position_bytes() + g / 2;
      // No hardware prefetcher continues to the next row. After the last one come the first ones' next block.
      const bool wraps = o + 2 >= outputs;
      const std::int64_t rows = wraps ? 2 - outputs : 2;
      const T* const next = values + rows * w.row_values() + (wraps ? 2 * kBlock : 0);
      for (std::size_t i = 0; i < 2 * kBlock * sizeof(T); i += 64)
        __builtin_prefetch(reinterpret_cast<const std::byte*>(next) + i);
      __builtin_prefetch(positions + rows * w.position_bytes());
      add_row<kVectors>(in_fp32(values, 2 * count, wide), positions, count, x + 4 * g * kTokens,
                        sums + o * kTokens);
    }
  }
}

// The outputs [output, output + outputs) of a panel.
template <class T, int kVectors>
void gather_tile(const cpu::PackedJob& job, std::int64_t panel, std::int64_t output, std::int64_t outputs) {
  constexpr std::int64_t kTokens = kVectors * kLanes, kSlab = kMostSlabGroups / kVectors / 2 * 2;
  const MatmulArgs& args = job.args;
  const float* const x = job.packed + panel * cpu::panel_depth(job.w.cols) * kTokens;
  alignas(64) float tile[kTileRows * kTokens];
  std::fill_n(tile, core::round_up(outputs, kLanes) * kTokens, 0.0f);
  for (std::int64_t g = 0; g < job.w.groups(); g += kSlab)
    for (std::int64_t o = 0; o < outputs; o += kOutputs)
      add_unit<T, kVectors>(job, x, output + o, std::min(kOutputs, outputs - o), g,
                            std::min(g + kSlab, job.w.groups()), tile + o * kTokens);
  const std::int64_t token = panel * kTokens;
  const T* const bias = static_cast<const T*>(args.bias);
  const T* const residual = static_cast<const T*>(args.residual);
  cpu::write_tile({tile, kTokens, std::min(kTokens, args.m - token), outputs, args.dtype, args.activation,
                   bias == nullptr ? nullptr : bias + output,
                   static_cast<T*>(args.out) + token * args.out_stride + output, args.out_stride, nullptr,
                   residual == nullptr ? nullptr : residual + token * args.residual_stride + output,
                   args.residual_stride});
}

template <class T>
void gather_units(const cpu::PackedJob& job, std::int64_t begin, std::int64_t end) {
  const cpu::Panels of(job.args.m);
  const std::int64_t last = std::min(end * kOutputs, job.w.rows);
  for (std::int64_t panel = 0; panel < of.panels; ++panel)
    for (std::int64_t output = begin * kOutputs; output < last; output += kTileRows)
      unroll<cpu::kPanelVectors>(SPARSELOOM_UNROLLED(v) {
        if (of.vectors == v.value + 1)
          gather_tile<T, v.value + 1>(job, panel, output, std::min(kTileRows, last - output));
      });
}

template <class T>
void pack_gather_x(const cpu::PackedJob& job, std::int64_t begin, std::int64_t end) {
  const std::int64_t depth = cpu::panel_depth(job.w.cols);
  pack_tokens<T>(job.args, job.w.cols, depth, cpu::Panels(job.args.m).vectors, begin, end, job.packed);
}
}  // namespace
#include "kernels/shared/cpu/end.h"

namespace sparseloom::kernels::cpu {
static constinit Runs gather_runs{"avx2_gather"};

template <class T>
static constexpr PackedOps kOps{&gather_runs, Direction::forward,     kTokenLanes,          avx2::kOutputs,
                                panel_floats, avx2::pack_gather_x<T>, avx2::gather_units<T>};

const PackedOps* gather_avx2(DType dtype) noexcept {
  return of_dtype(dtype, kOps<float>, kOps<F16>, kOps<Bf16>);
}
}  // namespace sparseloom::kernels::cpu

#endif
