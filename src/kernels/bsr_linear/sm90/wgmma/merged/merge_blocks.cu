// Merges small blocks into units; merge_blocks.h has the layout.
#include <cuda_runtime.h>

#include <bit>

#include "kernels/bsr_linear/sm90/wgmma/merged/merge_blocks.h"

namespace sparseloom::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// Thread blocks per unit row. Each finds all of the row's units, and fills some of them.
constexpr unsigned kPieces = 4;

struct Params {
  const std::int32_t* begin;  // where the lists begin, [lists + 1]
  const std::int32_t* along;
  const std::int32_t* slot;  // null if blocks are in list order
  const uint4* values;
  uint4* unit_values;
  std::int32_t *unit_begin, *unit_end, *unit_along, *unit_slot;
  std::int32_t lists, across;  // blocks along the outputs; units along the reduction
  int lists_log2, along_log2;  // blocks per unit along the outputs and the reduction
  int bm_log2, bn_log2, unit_rows_log2, unit_cols_log2;
  bool dx;
};

// blockIdx.x is a unit row, and blockIdx.y is one of its kPieces thread blocks.
__global__ void __launch_bounds__(kThreads) merge(const __grid_constant__ Params params) {
  extern __shared__ std::int32_t shared[];
  __shared__ std::int32_t count;
  const int cells_log2 = params.lists_log2 + params.along_log2, block_row = blockIdx.x;
  std::int32_t* const list = shared;                   // [across]
  std::int32_t* const table = shared + params.across;  // [across][cells]: the block's slot, or -1
  // Clear the table, then enter the stored blocks of the unit row's lists.
  for (int i = threadIdx.x; i < params.across << cells_log2; i += kThreads) table[i] = -1;
  __syncthreads();
  for (int of_block_row = 0; of_block_row < 1 << params.lists_log2; ++of_block_row) {
    const std::int32_t from = (block_row << params.lists_log2) + of_block_row;
    if (from >= params.lists) break;
    const std::int32_t end = __ldg(params.begin + from + 1);
    for (std::int32_t i = __ldg(params.begin + from) + static_cast<int>(threadIdx.x); i < end;
         i += kThreads) {
      const std::int32_t along = __ldg(params.along + i), unit = along >> params.along_log2;
      const int cell = (of_block_row << params.along_log2) | (along & ((1 << params.along_log2) - 1));
      table[(unit << cells_log2) + cell] = params.slot == nullptr ? i : __ldg(params.slot + i);
    }
  }
  __syncthreads();
  const std::int32_t first = block_row * params.across;
  // One warp lists the units that contain a stored block; the first thread block of the unit row writes the
  // index.
  if (threadIdx.x < 32) {
    std::int32_t listed = 0;
    for (int unit = threadIdx.x; unit - static_cast<int>(threadIdx.x) < params.across; unit += 32) {
      bool stored = false;
      if (unit < params.across) {
        for (int cell = 0; cell < 1 << cells_log2; ++cell) stored |= table[(unit << cells_log2) + cell] >= 0;
      }
      const unsigned all = __ballot_sync(0xffffffffu, stored);
      const std::int32_t rank = listed + __popc(all & ((1u << threadIdx.x) - 1u));
      if (stored) list[rank] = unit;
      if (stored && blockIdx.y == 0) {
        params.unit_along[first + rank] = unit;
        params.unit_slot[first + rank] = first + rank;
      }
      listed += __popc(all);
    }
    if (threadIdx.x == 0) {
      count = listed;
      if (blockIdx.y == 0) {
        params.unit_begin[block_row] = first;
        params.unit_end[block_row] = first + listed;
      }
    }
  }
  __syncthreads();
  // Fill this thread block's units, 16 bytes at a time: 8 columns of a unit's row, all from one block.
  const int chunks_log2 = params.unit_cols_log2 - 3, unit_log2 = params.unit_rows_log2 + chunks_log2;
  uint4* const to = params.unit_values + (static_cast<std::int64_t>(first) << unit_log2);
  for (int i = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
       i < count << unit_log2; i += static_cast<int>(kPieces) * kThreads) {
    const int row = i >> chunks_log2 & ((1 << params.unit_rows_log2) - 1),
              column = (i & ((1 << chunks_log2) - 1)) * 8;
    const int down = row >> params.bm_log2, over = column >> params.bn_log2;
    const int cell = params.dx ? (over << params.along_log2) | down : (down << params.along_log2) | over;
    const std::int32_t block = table[(list[i >> unit_log2] << cells_log2) + cell];
    uint4 piece = make_uint4(0, 0, 0, 0);
    if (block >= 0) {
      const int within =
          ((row & ((1 << params.bm_log2) - 1)) << params.bn_log2) + (column & ((1 << params.bn_log2) - 1));
      piece = __ldg(params.values +
                    ((static_cast<std::int64_t>(block) << (params.bm_log2 + params.bn_log2)) + within) / 8);
    }
    to[i] = piece;
  }
}

int log2_of(int side) { return std::countr_zero(static_cast<unsigned>(side)); }

struct Places {
  std::byte* values;
  std::int32_t *begin, *end, *along, *slot;
  Places(std::byte* workspace, const Merging& merging)
      : values(workspace),
        begin(reinterpret_cast<std::int32_t*>(workspace + merging.values_bytes())),
        end(begin + merging.block_rows),
        along(end + merging.block_rows),
        slot(along + merging.units()) {}
};

}  // namespace

int merge_blocks(const MatmulArgs& args, const Merging& merging) noexcept {
  const bool dx = args.direction == Direction::dx;
  const Places places(args.workspace, merging);
  Params params{};
  params.begin = dx ? args.transposed.ccol : args.index.crow;
  params.along = dx ? args.transposed.row : args.index.col;
  params.slot = dx ? args.transposed.slot : nullptr;
  params.values = static_cast<const uint4*>(args.values);
  params.unit_values = reinterpret_cast<uint4*>(places.values);
  params.unit_begin = places.begin, params.unit_end = places.end, params.unit_along = places.along,
  params.unit_slot = places.slot;
  params.lists = static_cast<std::int32_t>(dx ? args.index.block_cols() : args.index.block_rows());
  params.across = static_cast<std::int32_t>(merging.across);
  params.lists_log2 = log2_of(dx ? merging.blocks_over() : merging.blocks_down());
  params.along_log2 = log2_of(dx ? merging.blocks_down() : merging.blocks_over());
  params.bm_log2 = log2_of(merging.block.rows), params.bn_log2 = log2_of(merging.block.cols);
  params.unit_rows_log2 = log2_of(merging.unit.rows), params.unit_cols_log2 = log2_of(merging.unit.cols);
  params.dx = dx;
  merge<<<dim3(static_cast<unsigned>(merging.block_rows), kPieces), kThreads, merging.table_bytes(),
          static_cast<cudaStream_t>(args.stream)>>>(params);
  return cudaGetLastError();
}

MatmulArgs merged(const MatmulArgs& args, const Merging& merging) noexcept {
  const Places places(args.workspace, merging);
  MatmulArgs product = args;
  product.index.block = merging.unit;
  product.index.blocks = merging.units();
  product.index.crow = product.transposed.ccol = places.begin;
  product.index.col = product.transposed.row = places.along;
  product.transposed.slot = places.slot;
  product.block_row_end = places.end;
  product.values = places.values;
  return product;
}

}  // namespace sparseloom::kernels::cuda
