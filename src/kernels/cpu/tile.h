// From a register tile in memory to the caller's matrices: bias, activation, rounding, edges. The same for
// every kernel: it runs once per output where the product runs once per multiplication.
#pragma once

#include <cstdint>

#include "sparseloom/dtype.h"
#include "sparseloom/plan.h"

namespace sparseloom::kernels::cpu {

struct TileOut {
  const float* tile;  // [outputs, rounded up to eights][tile_stride tokens], fp32
  std::int64_t tile_stride;
  std::int64_t tokens, outputs;  // valid ones
  DType dtype;
  Activation activation;
  const void* bias;  // of the first output, or null
  void* out;         // element (first token, first output)
  std::int64_t out_stride;
  const float* scale = nullptr;    // as many as the tile has, or null: all 1
  const void* residual = nullptr;  // as out, or null
  std::int64_t residual_stride = 0;
};

/// out[t, o] = act(fma(tile[o][t], scale[o], bias[o])) + residual[t, o]; times 1 that is tile + bias, to the
/// bit.
void write_tile(const TileOut& out);

/// By AVX2, since runs are short: out[i] = tile[i] (+ partial[i]) for i < n; partial, or out when it is fp32,
/// may be the running sum of earlier token chunks.
void write_run(const float* tile, const float* partial, std::int64_t n, DType dtype, void* out);

/// write_tile by one instruction set, `lanes` outputs at a time.
struct TileWriter {
  int lanes;
  void (*write)(const TileOut& out);
};
extern const TileWriter kAvx2Tile, kAvx512Tile;

}  // namespace sparseloom::kernels::cpu
