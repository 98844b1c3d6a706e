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

/// write_tile for one instruction set, `lanes` outputs at a time.
struct TileWriter {
  int lanes;
  void (*write)(const TileOut& out);
};
extern const TileWriter kAvx2Tile, kAvx512Tile;

}  // namespace sparseloom::kernels::cpu
