// Gates: factors for the stored blocks of a weight; a zero leaves its block out. The other blocks are written
// as a weight of their own, times their gates, and all products use that weight: forward, dX and dW take time
// for live blocks only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sparseloom/dtype.h"
#include "sparseloom/executor.h"
#include "sparseloom/export.h"
#include "sparseloom/layout.h"

namespace sparseloom {

/// The blocks whose gate is not zero, in the order of the weight: a packed index (packed_index.h) and values
/// with room for all of the weight's blocks; the first crow[block_rows] are used. The list entries of the
/// others, the free slots, are zero; their values are zero on the CPU and undefined on CUDA. Plan products
/// with Facts::moving, since the host does not know the number of blocks.
struct GatedBlocks {
  std::int32_t* index;  // [index_segments(..).size] for the weight's number of blocks
  void* values;         // [blocks, bm, bn]
  std::int32_t* place;  // [blocks]: the position of a weight's block among them; -1: its gate is zero
};

SPARSELOOM_API std::size_t gate_blocks_workspace(const IndexView& index, const Executor& executor);

/// Writes the blocks times their gates, fp32 [blocks]; a NaN gate counts as not zero. values are f32, f16 or
/// bf16; the product is rounded once. Everything lies on the executor's device; on CUDA the work is one
/// launch (two for more than 8192 blocks), queued and not waited for, which a CUDA graph may capture.
/// workspace: gate_blocks_workspace bytes, aligned to 16. Throws Error for another dtype, too little
/// workspace or null arrays.
SPARSELOOM_API void gate_blocks(const IndexView& index, const TransposedView& transposed, DType dtype,
                                const void* values, const float* gates, const GatedBlocks& gated,
                                std::span<std::byte> workspace, const Executor& executor);

/// The operands and results of gate_gradients, all on the executor's device.
struct GateGradients {
  DType dtype = DType::f32;  // of values, gradient and dvalues
  BlockShape block;
  std::int64_t blocks = 0;
  const void* values = nullptr;         // [blocks, bm, bn]
  const float* gates = nullptr;         // [blocks]
  const std::int32_t* place = nullptr;  // [blocks], from gate_blocks
  const void* gradient = nullptr;       // [blocks, bm, bn], by GatedBlocks::values
  void* dvalues = nullptr;              // [blocks, bm, bn], or null
  float* dgates = nullptr;              // [blocks], or null
};

/// dvalues = gate * gradient, rounded once, and dgates = sum(gradient * values) over each block, in fp32, in
/// a fixed order; zero for blocks whose gate is zero, which have no gradient. Throws Error for a dtype that
/// gate_blocks does not support, an unsupported block, and a null pointer where null has no meaning.
SPARSELOOM_API void gate_gradients(const GateGradients& call, const Executor& executor);

}  // namespace sparseloom
