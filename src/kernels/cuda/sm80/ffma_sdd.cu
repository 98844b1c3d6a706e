// dW in fp32 by FFMA, host side: how many pieces the tokens are cut into, and the launches.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm80/ffma_sdd.h"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda {
namespace {

// Seven or eight thread blocks share a multiprocessor; twice that many items each level out their different lengths to some 5 %.
constexpr std::int64_t kItemsPerMultiprocessor = 16;
// A thread block takes some 70 ns a token when it is alone. Shorter pieces than this would not repay the second launch, of 5 us,
// and at 8 bytes a piece and sum the partial sums would cost more than a tenth of the products.
constexpr std::int64_t kFewestTokens = 512;

struct Split {
  int log2_group;
  std::int64_t items;  // that the grid counts; some are empty
  int parts;           // of a block row
  std::int64_t piece_tokens;
  int pieces;
};

/// Cuts the tokens when items alone are too few to fill the GPU. A pure function: the workspace is sized by the same call. Partial
/// sums stay below some 140 MB on any problem, since many blocks need no cut.
Split split(std::int64_t m, std::int64_t block_rows, BlockShape block, std::int64_t blocks, int multiprocessors) {
  Split cut;
  cut.log2_group = std::countr_zero(static_cast<unsigned>(ffma::kSddColumns / block.cols));
  cut.items = mma_sdd_items(blocks, block_rows, cut.log2_group);
  cut.parts = block.rows / ffma::sdd_rows(block.rows);
  // Row lengths are on the device; the last item of a row is taken to be half full.
  const std::int64_t filled = std::min(blocks, (blocks >> cut.log2_group) + (std::min(blocks, block_rows) + 1) / 2) * cut.parts;
  const std::int64_t wanted =
      (kItemsPerMultiprocessor * std::max(1, multiprocessors) + filled - 1) / std::max<std::int64_t>(1, filled);
  const std::int64_t pieces = std::clamp<std::int64_t>(m / kFewestTokens, 1, std::max<std::int64_t>(1, wanted));
  constexpr std::int64_t kStep = 16;  // SddConfig::kTokens: pieces end where steps do
  cut.piece_tokens = std::max(kStep, ((m + pieces - 1) / pieces + kStep - 1) / kStep * kStep);
  cut.pieces = std::max(1, static_cast<int>((m + cut.piece_tokens - 1) / cut.piece_tokens));  // no tokens: one, which writes zeros
  return cut;
}

bool aligned(const void* matrix, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(matrix) % 16 == 0 && stride % 4 == 0;
}

}  // namespace

std::size_t sm80_ffma_sdd_workspace(const Problem& p, int multiprocessors) noexcept {
  if (p.blocks == 0) return 0;
  const std::int64_t block_rows = (p.rows + p.block.rows - 1) / p.block.rows;
  const Split cut = split(p.m, block_rows, p.block, p.blocks, multiprocessors);
  if (cut.pieces == 1) return 0;
  return static_cast<std::size_t>(p.blocks) * p.block.rows * p.block.cols * cut.pieces * sizeof(float);
}

int sm80_ffma_sdd(const MatmulArgs& args) noexcept {
  const IndexView& index = args.index;
  if (index.blocks == 0) return cudaSuccess;
  const Split cut = split(args.m, index.block_rows(), index.block, index.blocks, runtime::cuda_device(args.device).multiprocessors);
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
  if (cut.items * cut.parts > std::numeric_limits<std::int32_t>::max()) return cudaErrorInvalidConfiguration;

  const dim3 grid(static_cast<unsigned>(cut.items * cut.parts), static_cast<unsigned>(cut.pieces));
  const auto stream = static_cast<cudaStream_t>(args.stream);
  const cudaError_t status = ffma::ffma_sdd(params, grid, args.device, stream);
  if (status != cudaSuccess || cut.pieces == 1) return status;
  return sum_pieces(params.partial, params.elements, cut.pieces, DType::f32, args.accumulate, args.out, stream);
}

}  // namespace sparseloom::kernels::cuda
