// dW on tensor cores, host side: how many pieces the tokens are cut into, and the launches.
#include <bit>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm80/mma_sdd.h"
#include "kernels/cuda/sm80/mma_sdd_cut.h"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda {
namespace {

bool in_chunks(const void* matrix, std::int64_t stride, int element_bytes) {
  return reinterpret_cast<std::uintptr_t>(matrix) % 16 == 0 && stride * element_bytes % 16 == 0;
}

}  // namespace

std::size_t sm80_mma_sdd_workspace(const Problem& p, int multiprocessors) noexcept {
  if (p.blocks == 0) return 0;
  const mma_sdd::Cut cut = mma_sdd::cut_tokens(mma_sdd::size_of_product(p), multiprocessors);
  if (cut.pieces == 1) return 0;
  return static_cast<std::size_t>(p.blocks) * p.block.rows * p.block.cols * cut.pieces * sizeof(float);
}

int sm80_mma_sdd(const MatmulArgs& args) noexcept {
  const IndexView& index = args.index;
  if (index.blocks == 0) return cudaSuccess;
  const int element_bytes = static_cast<int>(size_of(args.dtype));
  const mma_sdd::Cut cut = mma_sdd::cut_tokens({args.m, index.block_rows(), index.blocks, index.block, element_bytes},
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

  const std::int64_t items = mma_sdd_items(index.blocks, params.block_rows, cut.log2_group);
  const dim3 grid(static_cast<unsigned>(items), static_cast<unsigned>(cut.pieces));
  const auto stream = static_cast<cudaStream_t>(args.stream);
  const auto launch = args.dtype == DType::bf16 ? mma_sdd_bf16 : args.dtype == DType::f16 ? mma_sdd_f16 : mma_sdd_tf32;
  const cudaError_t status = launch(params, index.block.rows, grid, args.device, stream);
  if (status != cudaSuccess || cut.pieces == 1) return status;
  return sum_pieces(params.partial, params.elements, cut.pieces, args.dtype, args.accumulate, args.out, stream);
}

}  // namespace sparseloom::kernels::cuda
