#include <algorithm>
#include <climits>

#include "kernels/csr_linear/sm80/entries.h"
#include "kernels/csr_linear/sm80/sampled/kernel.cuh"

namespace sparseloom::kernels::cuda {
namespace {

using namespace csr;

constexpr std::int64_t kMostGridY = 65535;
// Rows with fewer stored elements than this, on average, are multiplied 8 elements at a time instead of 32.
constexpr std::int64_t kShortRow = 12;
constexpr std::int64_t kMostSplit = 16;

constexpr std::int64_t aligned(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

template <class T>
struct Launcher {
  using Bits = typename T::Bits;
  const MatmulArgs& args;
  const CsrView& w;

  template <int kTokens, int kElements>
  int sampled(SampledParams<T> p) const {
    const std::int64_t chunks = w.stored / std::max<std::int64_t>(w.rows * kElements, 1) + 1;
    p.split = static_cast<int>(std::min(chunks, kMostSplit));
    const std::int64_t blocks = (w.rows + kSampledWarps - 1) / kSampledWarps * p.split;
    if (blocks > INT_MAX) return cudaErrorInvalidValue;
    sampled_kernel<T, kTokens, kElements><<<static_cast<unsigned>(blocks), dim3(32, kSampledWarps), 0,
                                            static_cast<cudaStream_t>(args.stream)>>>(p);
    return cudaGetLastError();
  }

  template <int kTokens>
  int of_length(const SampledParams<T>& p) const {
    return w.stored < kShortRow * w.rows ? sampled<kTokens, 8>(p) : sampled<kTokens, 32>(p);
  }

  int run() const {
    const std::int64_t padded = csr_sampled_padded(args.m);
    Bits* const dy = reinterpret_cast<Bits*>(args.workspace);
    Bits* const x =
        reinterpret_cast<Bits*>(args.workspace + aligned(w.rows * padded * std::int64_t{sizeof(Bits)}));
    const TransposeParams<Bits> turned{{static_cast<const Bits*>(args.a), args.a_stride, w.rows, dy},
                                       {static_cast<const Bits*>(args.b), args.b_stride, w.cols, x},
                                       args.m,
                                       padded};
    const dim3 grid(static_cast<unsigned>((std::max(w.rows, w.cols) + kSquare - 1) / kSquare),
                    static_cast<unsigned>(std::min(padded / kSquare, kMostGridY)), 2);
    transpose_kernel<Bits>
        <<<grid, dim3(kSquare, kSquareRows), 0, static_cast<cudaStream_t>(args.stream)>>>(turned);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
    SampledParams<T> p{};
    p.crow = w.crow, p.col = w.col, p.dy = dy, p.x = x, p.out = args.out;
    p.rows = w.rows, p.padded = padded, p.accumulate = args.accumulate;
    switch (csr_sampled_tokens(args.m)) {
      case 1: return of_length<1>(p);
      case 2: return of_length<2>(p);
      default: return of_length<4>(p);
    }
  }
};

}  // namespace

std::size_t csr_sampled_workspace(std::int64_t rows, std::int64_t cols, std::int64_t m, DType dtype) {
  const std::int64_t feature = csr_sampled_padded(m) * static_cast<std::int64_t>(size_of(dtype));
  return static_cast<std::size_t>(aligned(rows * feature) + aligned(cols * feature));
}

int sm80_csr_sampled(const CsrProduct& product) noexcept {
  if (product.args.direction != Direction::dw) return cudaErrorInvalidValue;
  return with_element(product.args.dtype, [&]<class T>(T) {
    return Launcher<T>{product.args, product.w}.run();
  });
}

}  // namespace sparseloom::kernels::cuda
