// Host side of activation_gradient.cuh: sizes the workspace, cuts the rows into segments (pieces) and
// launches.
#include <algorithm>

#include "kernels/shared/activation/activation.h"
#include "kernels/shared/activation/activation_gradient.cuh"
#include "kernels/shared/early_launch.cuh"

namespace sparseloom::kernels::cuda {
namespace {

using activation_gradient::Config;
using activation_gradient::Params;
using row::Bf16;
using row::F16;
using row::F32;

// The rows are cut into as many segments as the device can run at once; more would only be more sums to add.
// Few rows form one segment, which needs no second kernel: up to this many rows, a second launch costs more
// than the idle SMs (measured).
constexpr std::int64_t kOnePieceRows = 128;

/// Strips of columns and segments (pieces) of rows.
struct Cut {
  std::int64_t strips, pieces;
};

Cut cut(std::int64_t rows, std::int64_t cols, DType dtype, int multiprocessors) {
  const std::int64_t strip = 32 * (16 / static_cast<std::int64_t>(size_of(dtype)));
  const Cut whole{(cols + strip - 1) / strip, 1};
  if (rows <= kOnePieceRows || whole.strips == 0) return whole;
  const std::int64_t groups = (rows + Config::kGroupRows - 1) / Config::kGroupRows;
  return {whole.strips, std::clamp<std::int64_t>(Config::kPerSm * multiprocessors / whole.strips, 1, groups)};
}

template <class Element, bool kWhole>
auto kernel_of(bool activated) {
  return activated ? activation_gradient::gradient_kernel<Element, kWhole, true>
                   : activation_gradient::gradient_kernel<Element, kWhole, false>;
}

template <class Element>
cudaError_t launch(Params params, bool whole, const Cut& cut, float* workspace, void* dbias,
                   const ActivationGradientArgs& args) {
  const auto stream = static_cast<cudaStream_t>(args.stream);
  const bool sum_later = dbias != nullptr && cut.pieces > 1;
  params.sums = sum_later ? workspace : nullptr;
  params.dbias = sum_later ? nullptr : dbias;
  const auto kernel = whole ? kernel_of<Element, true>(params.saved != nullptr)
                            : kernel_of<Element, false>(params.saved != nullptr);
  const cudaError_t status =
      launch_kernel({.grid = dim3(static_cast<unsigned>(cut.strips), static_cast<unsigned>(cut.pieces)),
                     .block = Config::kThreads,
                     .stream = stream},
                    kernel, params);
  if (status != cudaSuccess || !sum_later) return status;
  constexpr auto kAdd = &activation_gradient::pieces_kernel<Element>;
  return launch_kernel({.grid = static_cast<unsigned>((params.cols + 31) / 32),
                        .block = dim3(32, Config::kSumRows),
                        .stream = stream,
                        .early = waits_for_earlier<kAdd>(args.device)},
                       kAdd, workspace, cut.pieces, params.cols, dbias);
}

bool aligned(const void* data, std::int64_t stride, DType dtype) {
  return data == nullptr || vector_aligned(data, stride * static_cast<std::int64_t>(size_of(dtype)));
}

}  // namespace

std::size_t sm80_activation_gradient_workspace(std::int64_t rows, std::int64_t cols, DType dtype,
                                               int multiprocessors) noexcept {
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
  const bool whole = dy.cols * static_cast<std::int64_t>(size_of(dy.dtype)) % 16 == 0 &&
                     aligned(params.dy, dy.stride, dy.dtype) &&
                     aligned(params.saved, saved.stride, dy.dtype) &&
                     aligned(params.dz, args.dz.stride, dy.dtype);
  const Cut pieces = cut(dy.rows, dy.cols, dy.dtype, args.multiprocessors);
  auto* const workspace = reinterpret_cast<float*>(args.workspace);
  switch (dy.dtype) {
    case DType::f32: return launch<F32>(params, whole, pieces, workspace, args.dbias, args);
    case DType::f16: return launch<F16>(params, whole, pieces, workspace, args.dbias, args);
    case DType::bf16: return launch<Bf16>(params, whole, pieces, workspace, args.dbias, args);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace sparseloom::kernels::cuda
