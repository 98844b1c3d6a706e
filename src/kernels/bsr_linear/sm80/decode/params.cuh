// Parameters of the decode kernels, the directions, and loads of misaligned operands.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/shared/ptx/ld.cuh"
#include "sparseloom/activation.h"

namespace sparseloom::kernels::cuda::decode {

/// The direction in which the blocks are walked.
struct Forward {};  // out = a W^T: along a block row, k are columns of W
struct Dx {};       // out = a W: down a block column, k are rows of W

/// Parameters, passed to the kernel by value. "Block row" means block row in forward and block column in dX.
/// "k side" is the block side that is summed over, "out side" the other. The outputs of a block row are cut
/// into strips.
template <class Element>
struct Params {
  const std::int32_t* first = nullptr;  // crow or ccol
  // [blocks]: col or row, the position of a block's k in a. Ascending within a block row.
  const std::int32_t* outer = nullptr;
  const std::int32_t* slot = nullptr;  // dX: [blocks], position of the block in values
  const Element* values = nullptr;
  const Element* a = nullptr;
  const Element* bias = nullptr;
  const Element* residual = nullptr;
  Element* out = nullptr;
  std::int64_t a_stride = 0, a_cols = 0;
  std::int64_t out_stride = 0, out_cols = 0, residual_stride = 0;
  int m = 0;
  unsigned block_bytes = 0;
  unsigned row_bytes = 0;  // bytes of one row inside a block
  int k_shift = 0;         // log2(k side)
  int whole_outer = 0;     // blocks with a smaller `outer` lie inside a_cols entirely
  int out_side = 0;
  int strips_shift = 0;  // log2(strips of a block row)
  std::int32_t blocks = 0, block_rows = 0;
  Activation activation = Activation::none;
  bool values_aligned = false;  // to 16 bytes; otherwise that operand is read element by element
  bool a_aligned = false;
  bool out_pairs = false;  // two elements may be stored at once
};

/// Returns 16 bytes: the first `count` elements at `from`, then zeros. Any alignment.
template <class Element>
__device__ __forceinline__ uint4 read_elements(const char* from, int count) {
  constexpr int kPerWord = 4 / sizeof(Element);
  std::uint32_t words[4] = {};
#pragma unroll
  for (int e = 0; e < 4 * kPerWord; ++e) {
    if (e >= count) continue;
    if constexpr (sizeof(Element) == 2) {
      words[e / 2] |= std::uint32_t{ptx::ld_global(reinterpret_cast<const unsigned short*>(from) + e)}
                      << (16 * (e % 2));
    } else {
      words[e] = ptx::ld_global(reinterpret_cast<const unsigned*>(from) + e);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace sparseloom::kernels::cuda::decode
