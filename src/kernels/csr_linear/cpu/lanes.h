// The lanes kernels: tokens on the lanes of vectors. Tokens come in panels of a few vectors; X is brought
// into the order [panel][feature][token] in fp32, so that a stored element multiplies whole vectors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/runs.h"
#include "sparseloom/csr.h"
#include "sparseloom/executor.h"

namespace sparseloom::kernels::cpu {

/// Rows of W whose outputs lie in one cache line of fp32, which is the unit of forward's work items.
inline constexpr int kCsrOutputs = 16;

/// Panels whose products are added to an element of dW one after another, since longer chains of additions
/// round away more.
inline constexpr std::int64_t kMostPanels = 512;

/// A matrix [m, depth] of the caller's and the same in panels: [panel][depth][tokens] fp32, zero beyond m.
struct CsrPack {
  const void* from;
  std::int64_t stride, m, depth;
  DType dtype;
  float* panels;
};

/// One call, as the kernels see it.
struct CsrJob {
  const MatmulArgs& args;
  CsrView w;
  int vectors;               // of a panel: 1, 2 or 4
  std::int64_t panel_count;  // ceil(m / (vectors * lanes))
  float* a;                  // forward: X in panels; dx and dw: dY
  float* b;                  // dw: X. dx: sums [panel][chunk][side][cols, rounded up to eights][tokens]
  float* sums;               // dw: [stored], unless the result takes fp32 sums itself
  float* part;               // dw of more than kMostPanels: [stored], the sums of so many at a time
  std::int64_t chunks;       // dx: shares of the rows of W that are summed apart
  std::int64_t sides;        // dx: arrays of sums of each share, the first of which has the result
};

struct LanesOps {
  Runs* runs;
  int lanes;
  /// Brings the features [begin, end) of one panel into order; begin is a multiple of 16.
  void (*pack)(const CsrPack& pack, int vectors, std::int64_t panel, std::int64_t begin, std::int64_t end);
  /// The outputs [begin, end) of one panel; begin is a multiple of kCsrOutputs.
  void (*forward)(const CsrJob& job, std::int64_t panel, std::int64_t begin, std::int64_t end);
  /// Adds the rows [begin, end) of W to the sums of one panel and chunk, which it clears first.
  void (*dx)(const CsrJob& job, std::int64_t panel, std::int64_t chunk, std::int64_t begin, std::int64_t end);
  /// Adds up the chunks of the inputs [begin, end) of one panel, and writes them; begin is a multiple of 8.
  void (*write_dx)(const CsrJob& job, std::int64_t panel, std::int64_t begin, std::int64_t end);
  /// dW of the rows [begin, end).
  void (*dw)(const CsrJob& job, std::int64_t begin, std::int64_t end);
};

/// `vectors` of a panel: 1, 2 or 4.
std::size_t lanes_workspace(const LanesOps& ops, const CsrView& w, Direction direction, DType dtype,
                            std::int64_t m, int vectors);
void run_lanes(const LanesOps& ops, const MatmulArgs& args, const CsrView& w, int vectors,
               const Executor& executor);

}  // namespace sparseloom::kernels::cpu
