// The lanes kernels: tokens on the lanes of vectors. Tokens come in panels of a few vectors; X is packed as
// [panel][feature][token] in fp32, so that a stored element multiplies whole vectors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/runs.h"
#include "sparseloom/csr.h"
#include "sparseloom/executor.h"

namespace sparseloom::kernels::cpu {

/// Rows of W whose outputs share a cache line of fp32: the unit of forward's work items.
inline constexpr int kCsrOutputs = 16;

/// Panels whose products are added to an element of dW one after another; longer chains of additions lose
/// precision.
inline constexpr std::int64_t kMostPanels = 512;

/// The caller's matrix [m, depth] and its panels: [panel][depth][tokens] fp32, zero past m.
struct CsrPack {
  const void* from;
  std::int64_t stride, m, depth;
  DType dtype;
  float* panels;
};

/// The arguments of a kernel.
struct CsrJob {
  const MatmulArgs& args;
  CsrView w;
  int vectors;               // vectors per panel: 1, 2 or 4
  std::int64_t panel_count;  // ceil(m / (vectors * lanes))
  float* a;                  // forward: X in panels; dx and dw: dY
  float* b;                  // dw: X. dx: sums [panel][chunk][side][cols, rounded up to eights][tokens]
  float* sums;               // dw: [stored], unless the result itself is fp32
  float* part;               // dw of more than kMostPanels: [stored], the sums of kMostPanels panels
  std::int64_t chunks;       // dx: ranges of the rows of W that are summed separately
  std::int64_t sides;        // dx: arrays of sums per chunk, the first of which has the result
};

struct LanesOps {
  Runs* runs;
  int lanes;
  /// Packs the features [begin, end) of one panel; begin is a multiple of 16.
  void (*pack)(const CsrPack& pack, int vectors, std::int64_t panel, std::int64_t begin, std::int64_t end);
  /// Computes the outputs [begin, end) of one panel; begin is a multiple of kCsrOutputs.
  void (*forward)(const CsrJob& job, std::int64_t panel, std::int64_t begin, std::int64_t end);
  /// Adds the rows [begin, end) of W to the sums of one panel and chunk, which it clears first.
  void (*dx)(const CsrJob& job, std::int64_t panel, std::int64_t chunk, std::int64_t begin, std::int64_t end);
  /// Adds up the chunks of the inputs [begin, end) of one panel, and writes them; begin is a multiple of 8.
  void (*write_dx)(const CsrJob& job, std::int64_t panel, std::int64_t begin, std::int64_t end);
  /// Computes dW of the rows [begin, end).
  void (*dw)(const CsrJob& job, std::int64_t begin, std::int64_t end);
};

/// `vectors` per panel: 1, 2 or 4.
std::size_t lanes_workspace(const LanesOps& ops, const CsrView& w, Direction direction, DType dtype,
                            std::int64_t m, int vectors);
void run_lanes(const LanesOps& ops, const MatmulArgs& args, const CsrView& w, int vectors,
               const Executor& executor);

extern const LanesOps kCsrLanesAvx2, kCsrLanesAvx512;

}  // namespace sparseloom::kernels::cpu
