// The terms that the parts of the cost model share.
#include "kernels/bsr_linear/cuda/cost_terms.h"

#include "kernels/bsr_linear/cuda/rates.h"

namespace sparseloom::kernels::cuda {
namespace {

// An H200 streams 4.2 TB/s of its memory's nominal 4.8.
constexpr double kMemoryShare = 0.87;

}  // namespace

Device::Device(const plan::Machine& machine) : runtime::CudaDevice(machine.cuda) {
  if (machine.gpu.memory_bytes <= 0) return;
  const plan::GpuRates expected = expected_rates(machine.cuda);
  const double clock = machine.gpu.tensor_flops / expected.tensor_flops;  // under load
  memory_bytes *= machine.gpu.memory_bytes / expected.memory_bytes;
  clock_hz *= clock;
  l2_share = machine.gpu.l2_bytes / expected.l2_bytes / clock;
}

double written_size(const Problem& p) {
  return static_cast<double>(size_of(is_scaled(p.dtype) ? p.out : p.dtype));
}

Bytes bytes_of(const Problem& p) {
  const double size = static_cast<double>(size_of(p.dtype)), m = static_cast<double>(p.m);
  const double rows = static_cast<double>(p.rows), cols = static_cast<double>(p.cols);
  const double stored = p.accumulate ? 8 : size;  // fp32 that is read and written
  return {static_cast<double>(p.blocks) * p.block.rows * p.block.cols * stored,
          m * (rows * written_size(p) + cols * size), rows * cols * (p.accumulate ? 4 : size)};
}

double memory_seconds(double bytes, const Device& device) {
  return bytes / (kMemoryShare * device.memory_bytes);
}

double useful_flops(const Problem& p, double tokens) {
  return 2.0 * tokens * static_cast<double>(p.blocks) * p.block.rows * p.block.cols;
}

}  // namespace sparseloom::kernels::cuda
