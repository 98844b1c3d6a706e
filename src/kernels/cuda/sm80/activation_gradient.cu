#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm80/activation_gradient.cuh"

namespace sparseloom::kernels::cuda {
namespace {

using activation_gradient::Config;
using activation_gradient::Params;
using row::Bf16;
using row::F16;
using row::F32;

// Pieces of the rows: two rounds of thread blocks over the device, for balance; more would only be more sums to add. Few rows are
// one piece, which needs no second kernel: below this a launch (4.5 us of the host) costs more than the idle SMs.
constexpr std::int64_t kOnePieceRows = 128;
constexpr std::int64_t kRounds = 2;

struct Cut {
  std::int64_t strips, pieces, rows_per_piece;
};

Cut cut(std::int64_t rows, std::int64_t cols, DType dtype, int multiprocessors) {
  const std::int64_t strip = 32 * (16 / static_cast<std::int64_t>(size_of(dtype)));
  Cut result{(cols + strip - 1) / strip, 1, rows};
  if (rows <= kOnePieceRows || result.strips == 0) return result;
  const std::int64_t wanted = std::max<std::int64_t>(1, kRounds * Config::kPerSm * std::max(1, multiprocessors) / result.strips);
  const std::int64_t even = (rows + wanted - 1) / wanted;
  result.rows_per_piece = (even + Config::kRowsInStep - 1) / Config::kRowsInStep * Config::kRowsInStep;
  result.pieces = (rows + result.rows_per_piece - 1) / result.rows_per_piece;
  return result;
}

template <class Element>
cudaError_t launch(Params params, bool whole, const Cut& cut, float* workspace, void* dbias, cudaStream_t stream) {
  const bool sum_later = dbias != nullptr && cut.pieces > 1;
  params.sums = sum_later ? workspace : nullptr;
  params.dbias = sum_later ? nullptr : dbias;
  const dim3 grid(static_cast<unsigned>(cut.strips), static_cast<unsigned>(cut.pieces));
  if (whole)
    activation_gradient::gradient_kernel<Element, true><<<grid, Config::kThreads, 0, stream>>>(params);
  else
    activation_gradient::gradient_kernel<Element, false><<<grid, Config::kThreads, 0, stream>>>(params);
  if (sum_later) {
    const auto blocks = static_cast<unsigned>((params.cols + 31) / 32);
    activation_gradient::pieces_kernel<Element>
        <<<blocks, dim3(32, Config::kSumRows), 0, stream>>>(workspace, cut.pieces, params.cols, dbias);
  }
  return cudaGetLastError();
}

bool aligned(const void* data, std::int64_t stride, DType dtype) {
  return data == nullptr || vector_aligned(data, stride * static_cast<std::int64_t>(size_of(dtype)));
}

}  // namespace

std::size_t sm80_activation_gradient_workspace(std::int64_t rows, std::int64_t cols, DType dtype, int multiprocessors) noexcept {
  const Cut pieces = cut(rows, cols, dtype, multiprocessors);
  return pieces.pieces > 1 ? static_cast<std::size_t>(pieces.pieces * cols) * sizeof(float) : 0;
}

int sm80_activation_gradient(const ActivationGradientArgs& args) noexcept {
  const ConstMatrixView &dy = args.dy, &saved = args.saved;
  if (dy.cols == 0 || (dy.rows == 0 && args.dbias == nullptr)) return cudaSuccess;
  Params params{};
  params.dy = dy.data;
  params.saved = args.activation == Activation::none ? nullptr : saved.data;
  params.dz = args.dz.data;
  params.rows = dy.rows;
  params.cols = dy.cols;
  params.dy_stride = dy.stride;
  params.saved_stride = saved.stride;
  params.dz_stride = args.dz.stride;
  params.activation = args.activation;
  const bool whole = dy.cols * static_cast<std::int64_t>(size_of(dy.dtype)) % 16 == 0 && aligned(params.dy, dy.stride, dy.dtype) &&
                     aligned(params.saved, saved.stride, dy.dtype) && aligned(params.dz, args.dz.stride, dy.dtype);
  const Cut pieces = cut(dy.rows, dy.cols, dy.dtype, args.multiprocessors);
  params.rows_per_piece = pieces.rows_per_piece;
  auto* const workspace = reinterpret_cast<float*>(args.workspace);
  const auto stream = static_cast<cudaStream_t>(args.stream);
  switch (dy.dtype) {
    case DType::f32: return launch<F32>(params, whole, pieces, workspace, args.dbias, stream);
    case DType::f16: return launch<F16>(params, whole, pieces, workspace, args.dbias, stream);
    case DType::bf16: return launch<Bf16>(params, whole, pieces, workspace, args.dbias, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda
