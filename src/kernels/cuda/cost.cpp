#include "kernels/cuda/cost.h"

#include <algorithm>

namespace sparseloom::kernels::cuda {
namespace {

// First byte, last byte and the launch itself; the same for every kernel, so it only keeps tiny problems from looking free.
constexpr double kLaunchUs = 3;
// Of the peak, what cuBLAS reached on an H200 in every dtype: 796 of 1070 TF/s bf16, 400 of 535 TF32, 49 of 67 fp32.
constexpr double kVendorShare = 0.74;
// mma.sync on Hopper against its own wgmma (Luo et al., arXiv 2402.13499: 62 %), less what the pipeline of a tile leaves idle.
constexpr double kMmaShare = 0.40;
constexpr double kFfmaShare = 0.55;
// Of the memory's nominal 4.8 TB/s, an H200 streams 4.2.
constexpr double kMemoryShare = 0.87;
// L2 to the multiprocessors, bytes per clock and multiprocessor: 6 TB/s on an H200 for rows of 128 bytes.
constexpr double kL2BytesPerClock = 23;

double tensor_peak(const Problem& p, const runtime::CudaDevice& device) {
  // Flops per clock and multiprocessor: 16-bit, TF32 and FFMA on sm_80 and sm_90; consumer parts have less and only rank alike.
  const double dense = device.sm >= 90 ? 4096 : 2048;
  const double per_clock = p.dtype != DType::f32 ? dense : p.tf32 ? dense / 2 : 256;
  return per_clock * device.multiprocessors * device.clock_hz;
}

double us(double seconds) { return 1e6 * seconds; }

struct Bytes {
  double stored, tokens_in, tokens_out, dense;
};

Bytes bytes_of(const Problem& p) {
  const double size = static_cast<double>(size_of(p.dtype)), m = static_cast<double>(p.m);
  const double rows = static_cast<double>(p.rows), cols = static_cast<double>(p.cols);
  const bool forward = p.direction == Direction::forward;
  return {static_cast<double>(p.blocks) * p.block.rows * p.block.cols * size,
          m *
              (p.direction == Direction::dw ? rows + cols
               : forward                    ? cols
                                            : rows) *
              size,
          p.direction == Direction::dw ? 0 : m * (forward ? rows : cols) * size, rows * cols * size};
}

double useful_flops(const Problem& p) {
  return 2.0 * static_cast<double>(p.m) * static_cast<double>(p.blocks) * p.block.rows * p.block.cols;
}

// A tile of `tokens` x `side` outputs loads (tokens + side) elements for every 2 * tokens * side flops. For dw the tile is a block
// row by what is gathered beside it.
double tiled_us(const Problem& p, const runtime::CudaDevice& device, double peak) {
  const double side = p.direction == Direction::dx ? p.block.cols : p.block.rows;
  const double other = p.direction == Direction::dw ? std::max(128.0, double{1} * p.block.cols) : side >= 64 ? 128 : 256;
  const double size = static_cast<double>(size_of(p.dtype));
  const double l2 =
      useful_flops(p) * size * (other + side) / (2 * other * side) / (kL2BytesPerClock * device.multiprocessors * device.clock_hz);
  const Bytes bytes = bytes_of(p);
  const double memory = (bytes.stored + bytes.tokens_in + bytes.tokens_out) / (kMemoryShare * device.memory_bytes);
  return kLaunchUs + us(std::max({useful_flops(p) / peak, l2, memory}));
}

}  // namespace

double predict_mma_us(const Problem& p, const runtime::CudaDevice& device) {
  return tiled_us(p, device, kMmaShare * tensor_peak(p, device));
}

double predict_ffma_us(const Problem& p, const runtime::CudaDevice& device) {
  return tiled_us(p, device, kFfmaShare * tensor_peak(p, device));
}

double predict_decode_us(const Problem& p, const runtime::CudaDevice& device) {
  const Bytes bytes = bytes_of(p);
  // Every strip of 16 outputs reads the tokens' part of each of its blocks again, from L2.
  const double again = bytes.stored * static_cast<double>(p.m) / 16;
  const double ffma = p.dtype == DType::f32 && !p.tf32 ? useful_flops(p) / (kFfmaShare * tensor_peak(p, device)) : 0;
  const double memory = (bytes.stored + bytes.tokens_in + bytes.tokens_out) / (0.8 * kMemoryShare * device.memory_bytes);
  return kLaunchUs + us(std::max({memory, again / (kL2BytesPerClock * device.multiprocessors * device.clock_hz), ffma}));
}

double predict_dense_us(const Problem& p, const runtime::CudaDevice& device) {
  const Bytes bytes = bytes_of(p);
  const double memory = kMemoryShare * device.memory_bytes;
  const double flops = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.rows) * static_cast<double>(p.cols);
  const double product =
      std::max(flops / (kVendorShare * tensor_peak(p, device)), (bytes.dense + bytes.tokens_in + bytes.tokens_out) / memory);
  return 2 * kLaunchUs + us(product + (bytes.stored + bytes.dense) / memory);
}

}  // namespace sparseloom::kernels::cuda
