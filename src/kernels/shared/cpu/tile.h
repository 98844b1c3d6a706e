// The epilogue of the CPU kernels, from a register tile stored in memory to the caller's matrices: bias,
// activation, rounding, edges. All kernels share it, as it runs only once per output.
#pragma once

#include <cstdint>

#include "sparseloom/dtype.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cpu {

struct TileOut {
  const float* tile;  // [outputs, rounded up to eights][tile_stride tokens], fp32
  std::int64_t tile_stride;
  std::int64_t tokens, outputs;  // valid tokens and outputs
  DType dtype;
  Activation activation;
  const void* bias;  // bias of the first output, or null
  void* out;         // element (first token, first output)
  std::int64_t out_stride;
  const float* scale = nullptr;    // one per output of the tile, or null: all 1
  const void* residual = nullptr;  // shaped like out, or null
  std::int64_t residual_stride = 0;
};

/// out[t, o] = act(fma(tile[o][t], scale[o], bias[o])) + residual[t, o]. With a scale of 1 the fma is tile +
/// bias to the bit.
void write_tile(const TileOut& out);

/// out[i] = tile[i] (+ partial[i]) for i < n, by AVX2, since n is small. `partial` may be the running sum of
/// earlier chunks of tokens, and may be `out` itself when that is fp32.
void write_run(const float* tile, const float* partial, std::int64_t n, DType dtype, void* out);

/// Finished sums in the caller's matrix, which an activation and a residual follow.
struct RowsOut {
  DType dtype;  // f32, f16 or bf16
  Activation activation;
  void* out;  // [tokens][outputs]
  std::int64_t out_stride, tokens, outputs;
  const void* residual = nullptr;  // shaped like out, or null
  std::int64_t residual_stride = 0;
};

/// out[t, o] = act(out[t, o]) + residual[t, o], by the machine's widest vectors. Needs AVX2.
void finish_rows(const RowsOut& out);

/// write_tile, `lanes` outputs at a time, and finish_rows for one instruction set.
struct TileWriter {
  int lanes;
  void (*write)(const TileOut& out);
  void (*finish)(const RowsOut& out);
};
extern const TileWriter kAvx2Tile, kAvx512Tile;

}  // namespace sparseloom::kernels::cpu
