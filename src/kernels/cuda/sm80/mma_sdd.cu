// dW on tensor cores, host side: how many pieces the tokens are cut into, and the launches.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm80/mma_sdd.h"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda {
namespace {

// What one multiprocessor sustains in this kernel. mma.sync reaches 600 TF/s on the 132 of an H200, of which two thread blocks'
// shared-memory reads leave about half; L2 delivers 5.5 TB/s to rows of 64 bytes. Only their ratio to the costs below matters.
constexpr double kFlops = 2.2e12;  // 16-bit; TF32 half
constexpr double kL2Bytes = 4.2e10;
// Partial sums are written and read once each, mostly in L2.
constexpr double kPartialBytes = 3e10;
// The second launch, in seconds: of host time, and of an emptying and filling GPU.
constexpr double kLaunch = 5e-6;
// A multiprocessor with one thread block does about this share of what it does with two: nothing covers its barriers.
constexpr double kAlone = 0.67;
// Fewer steps than this do not cover the ring's filling and the stores.
constexpr std::int64_t kFewestChunks = 8;
constexpr std::int64_t kMostPieces = 64;

struct Size {
  std::int64_t m, block_rows, blocks;
  BlockShape block;
  int element_bytes;
};

struct Split {
  int log2_group;
  std::int64_t items;
  std::int64_t piece_tokens;
  int pieces;
};

/// Cuts the tokens when there are too few items to fill the GPU, or their number leaves its last wave short, and the gain exceeds
/// the cost of the partial sums. A pure function: the workspace is sized by the same call.
Split split(const Size& size, int multiprocessors) {
  const int log2_group = std::countr_zero(static_cast<unsigned>(mma_sdd_columns(size.block.rows) / size.block.cols));
  const int chunk = mma_sdd_tokens(size.element_bytes);
  const std::int64_t chunks = std::max<std::int64_t>(1, (size.m + chunk - 1) / chunk);  // no tokens: one piece, which writes zeros
  const double m = static_cast<double>(size.m), blocks = static_cast<double>(size.blocks), sms = std::max(1, multiprocessors);
  const double elements = blocks * size.block.rows * size.block.cols;

  // Row lengths are on the device. Of random ones, the last item of a row is half full on average.
  const double group = static_cast<double>(1 << log2_group);
  const double rows = static_cast<double>(std::min(size.block_rows, size.blocks));
  const double items = std::min(blocks, blocks / group + rows * (group - 1) / (2 * group));
  const double flops = 2 * m * elements / (size.element_bytes == 2 ? kFlops : kFlops / 2);
  const double bytes = m * size.element_bytes * (blocks * size.block.cols + items * size.block.rows) / kL2Bytes;
  const double busy = std::max(flops, bytes) / sms;  // seconds with every multiprocessor busy

  const auto seconds = [&](std::int64_t pieces) {
    const double each = items * static_cast<double>(pieces) / sms;  // thread blocks per multiprocessor
    // Their number is known exactly only where an item is one block; else the last wave is half full.
    const double slowest = std::max(1 / kAlone, log2_group == 0 ? std::ceil(each) : each + 0.5);
    const double partial = pieces == 1 ? 0 : kLaunch + 2 * 4 * elements * static_cast<double>(pieces) / (kPartialBytes * sms);
    return busy * slowest / each + partial;
  };
  std::int64_t best = 1;
  double best_seconds = seconds(1);
  // More than four thread blocks per multiprocessor even out no better.
  for (std::int64_t pieces = 2; pieces <= std::min(kMostPieces, chunks / kFewestChunks); ++pieces) {
    if (items * static_cast<double>(pieces - 1) > 4 * sms) break;
    const double these = seconds(pieces);
    if (these < best_seconds) best = pieces, best_seconds = these;
  }
  const std::int64_t piece_chunks = (chunks + best - 1) / best;
  return {log2_group, mma_sdd_items(size.blocks, size.block_rows, log2_group), piece_chunks * chunk,
          static_cast<int>((chunks + piece_chunks - 1) / piece_chunks)};
}

bool in_chunks(const void* matrix, std::int64_t stride, int element_bytes) {
  return reinterpret_cast<std::uintptr_t>(matrix) % 16 == 0 && stride * element_bytes % 16 == 0;
}

}  // namespace

std::size_t sm80_mma_sdd_workspace(const Problem& p, int multiprocessors) noexcept {
  if (p.blocks == 0) return 0;
  const std::int64_t block_rows = (p.rows + p.block.rows - 1) / p.block.rows;
  const Split cut = split({p.m, block_rows, p.blocks, p.block, static_cast<int>(size_of(p.dtype))}, multiprocessors);
  if (cut.pieces == 1) return 0;
  return static_cast<std::size_t>(p.blocks) * p.block.rows * p.block.cols * cut.pieces * sizeof(float);
}

int sm80_mma_sdd(const MatmulArgs& args) noexcept {
  const IndexView& index = args.index;
  if (index.blocks == 0) return cudaSuccess;
  const int element_bytes = static_cast<int>(size_of(args.dtype));
  const Split cut = split({args.m, index.block_rows(), index.blocks, index.block, element_bytes},
                          runtime::cuda_device(args.device).multiprocessors);
  MmaSddParams params;
  params.dy = args.a;
  params.x = args.b;
  params.dy_stride = args.a_stride;
  params.x_stride = args.b_stride;
  params.m = args.m;
  params.rows = index.rows;
  params.cols = index.cols;
  params.crow = index.crow;
  params.col = index.col;
  params.block_rows = index.block_rows();
  params.log2_bn = std::countr_zero(static_cast<unsigned>(index.block.cols));
  params.log2_group = cut.log2_group;
  params.piece_tokens = cut.piece_tokens;
  params.out = args.out;
  params.accumulate = args.accumulate;
  params.partial = cut.pieces == 1 ? nullptr : reinterpret_cast<float*>(args.workspace);
  params.elements = index.blocks * index.block_elements();
  params.dy_chunks = in_chunks(args.a, args.a_stride, element_bytes);
  params.x_chunks = in_chunks(args.b, args.b_stride, element_bytes);

  const dim3 grid(static_cast<unsigned>(cut.items), static_cast<unsigned>(cut.pieces));
  const auto stream = static_cast<cudaStream_t>(args.stream);
  const auto launch = args.dtype == DType::bf16 ? mma_sdd_bf16 : args.dtype == DType::f16 ? mma_sdd_f16 : mma_sdd_tf32;
  const cudaError_t status = launch(params, index.block.rows, grid, args.device, stream);
  if (status != cudaSuccess || cut.pieces == 1) return status;
  return sum_pieces(params.partial, params.elements, cut.pieces, args.dtype, args.accumulate, args.out, stream);
}

}  // namespace sparseloom::kernels::cuda
