#include <algorithm>

#include "kernels/csr_linear/sm80/entries.h"
#include "kernels/csr_linear/sm80/gather/kernel.cuh"
#include "kernels/shared/early_launch.cuh"

namespace sparseloom::kernels::cuda {
namespace {

using namespace csr;

constexpr std::int64_t kMostGridY = 65535;
// Two thread blocks fit on an sm_80 with this much, and one on an sm_86.
constexpr std::int64_t kStagedBytes = 80 << 10;
// Rows with fewer stored elements than this, on average, get 8 lanes instead of 32.
constexpr std::int64_t kShortRow = 24;

int tokens_of(std::int64_t m) { return m == 1 ? 1 : kCsrGatherTokens; }

template <auto kKernel, class Params>
int launch(const Params& params, const MatmulArgs& args, std::int64_t rows, int lanes, std::int64_t slices,
           std::int64_t bytes) {
  if (rows == 0 || slices == 0) return cudaSuccess;
  if (bytes > 0)
    if (const cudaError_t error = allow_shared_memory<kKernel>(kStagedBytes, args.device); error != 0)
      return error;
  const std::int64_t at_once = kGatherThreads / lanes;
  const dim3 grid(static_cast<unsigned>((rows + at_once - 1) / at_once),
                  static_cast<unsigned>(std::min(slices, kMostGridY)));
  kKernel<<<grid, kGatherThreads, bytes, static_cast<cudaStream_t>(args.stream)>>>(params);
  return cudaGetLastError();
}

template <class T, int kTokens, int kLanes, bool kStaged>
int run(const CsrProduct& product) {
  const MatmulArgs& args = product.args;
  const CsrView& w = product.w;
  using Bits = typename T::Bits;
  const auto bytes = [](std::int64_t depth) {
    return kStaged ? depth * kTokens * std::int64_t{sizeof(Bits)} : std::int64_t{0};
  };
  if (args.direction == Direction::dw) {
    GatherDwParams<T> p{};
    p.crow = w.crow, p.col = w.col, p.rows = w.rows, p.cols = w.cols, p.m = args.m;
    p.dy = static_cast<const Bits*>(args.a), p.dy_stride = args.a_stride;
    p.x = static_cast<const Bits*>(args.b), p.x_stride = args.b_stride;
    p.out = args.out, p.accumulate = args.accumulate;
    return launch<gather_dw_kernel<T, kTokens, kLanes, kStaged>>(p, args, w.rows, kLanes, 1, bytes(w.cols));
  }
  const Rows<T> rows = rows_of<T>(args, w);
  const GatherParams<T> p{rows, args.direction == Direction::dx ? w.slot : nullptr,
                          static_cast<const Bits*>(args.values)};
  return launch<gather_kernel<T, kTokens, kLanes, kStaged>>(
      p, args, rows.rows, kLanes, (args.m + kTokens - 1) / kTokens, bytes(rows.depth));
}

template <class T, int kTokens, int kLanes>
int staged_or_not(const CsrProduct& product) {
  const MatmulArgs& args = product.args;
  const std::int64_t depth = args.direction == Direction::dx ? product.w.rows : product.w.cols;
  return csr_gather_stages(args.direction, depth, args.m, args.dtype)
             ? run<T, kTokens, kLanes, true>(product)
             : run<T, kTokens, kLanes, false>(product);
}

}  // namespace

bool csr_gather_stages(Direction direction, std::int64_t depth, std::int64_t m, DType dtype) {
  const int tokens = tokens_of(m);
  return depth * tokens * static_cast<std::int64_t>(size_of(dtype)) <= kStagedBytes &&
         (direction != Direction::dw || m <= tokens);
}

int sm80_csr_gather(const CsrProduct& product) noexcept {
  const MatmulArgs& args = product.args;
  const CsrView& w = product.w;
  if (args.direction == Direction::dx && w.ccol == nullptr) return cudaErrorInvalidValue;
  const std::int64_t rows = args.direction == Direction::dx ? w.cols : w.rows;
  const bool is_short = w.stored < kShortRow * rows;
  return with_element(args.dtype, [&]<class T>(T) {
    if (tokens_of(args.m) == 1)
      return is_short ? staged_or_not<T, 1, 8>(product) : staged_or_not<T, 1, 32>(product);
    return is_short ? staged_or_not<T, kCsrGatherTokens, 8>(product)
                    : staged_or_not<T, kCsrGatherTokens, 32>(product);
  });
}

}  // namespace sparseloom::kernels::cuda
