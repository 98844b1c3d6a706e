// dW in fp32 by FFMA, host side: scratch and launches.
#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm80/ffma_sdd.h"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda {
namespace {

bool aligned(const void* matrix, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(matrix) % 16 == 0 && stride % 4 == 0;
}

}  // namespace

std::size_t sm80_ffma_sdd_workspace(const Problem& p, int multiprocessors) noexcept {
  if (p.blocks == 0) return 0;
  const ffma::SddCut cut = ffma::cut_of_product(p, multiprocessors);
  if (cut.pieces == 1) return 0;
  return static_cast<std::size_t>(p.blocks) * p.block.rows * p.block.cols * cut.pieces * sizeof(float);
}

int sm80_ffma_sdd(const MatmulArgs& args) noexcept {
  const IndexView& index = args.index;
  if (index.blocks == 0) return cudaSuccess;
  const int multiprocessors = runtime::cuda_device(args.device).multiprocessors;
  const ffma::SddCut cut = ffma::cut_tokens(args.m, index.block_rows(), index.block, index.blocks, multiprocessors);
  ffma::SddParams params;
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
  params.dy_chunks = aligned(args.a, args.a_stride);
  params.x_chunks = aligned(args.b, args.b_stride);
  params.bm = index.block.rows;
  // Some of them are empty.
  const std::int64_t items = mma_sdd_items(index.blocks, index.block_rows(), cut.log2_group) * cut.parts;
  if (items > std::numeric_limits<std::int32_t>::max()) return cudaErrorInvalidConfiguration;

  const dim3 grid(static_cast<unsigned>(items), static_cast<unsigned>(cut.pieces));
  const auto stream = static_cast<cudaStream_t>(args.stream);
  const cudaError_t status = ffma::ffma_sdd(params, grid, args.device, stream);
  if (status != cudaSuccess || cut.pieces == 1) return status;
  return sum_pieces(params.partial, params.elements, cut.pieces, DType::f32, args.accumulate, args.out, stream);
}

}  // namespace sparseloom::kernels::cuda
