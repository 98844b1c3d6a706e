// The GRU's cell and its gradient.
#include "kernels/recurrent/sm80/cells.h"
#include "kernels/recurrent/sm80/lanes.cuh"

namespace sparseloom::kernels::cuda {
namespace recurrent {

template <class Element, int kUnits>
__global__ void __launch_bounds__(kThreads) gru_kernel(const __grid_constant__ GruCell cell) {
  each<kUnits>(cell.n, cell.hidden, [&](std::int64_t row, std::int64_t unit) {
    const std::int64_t at = row * cell.hidden + unit, third = at + 2 * row * cell.hidden;
    Units<Element, kUnits> r, u, m, gr, gu, gm, h_before, h;
    r.load(cell.x, third), u.load(cell.x, third + cell.hidden), m.load(cell.x, third + 2 * cell.hidden);
    gr.load(cell.g, third), gu.load(cell.g, third + cell.hidden), gm.load(cell.g, third + 2 * cell.hidden);
    h_before.load(cell.h_before, at);
#pragma unroll
    for (int e = 0; e < kUnits; ++e)
      gru_forward(r.x[e], u.x[e], m.x[e], gr.x[e], gu.x[e], gm.x[e], h_before.x[e], h.x[e]);
    h.store(cell.h, at);
    if (cell.gates == nullptr) return;
    const std::int64_t gate = at + 3 * row * cell.hidden;
    r.store(cell.gates, gate), u.store(cell.gates, gate + cell.hidden);
    m.store(cell.gates, gate + 2 * cell.hidden), gm.store(cell.gates, gate + 3 * cell.hidden);
  });
}

template <class Element, int kUnits>
__global__ void __launch_bounds__(kThreads)
    gru_gradient_kernel(const __grid_constant__ GruCellGradient cell) {
  each<kUnits>(cell.n, cell.hidden, [&](std::int64_t row, std::int64_t unit) {
    const std::int64_t at = row * cell.hidden + unit, gate = at + 3 * row * cell.hidden;
    Units<Element, kUnits> r, u, m, gm, h_before, dh{};
    r.load(cell.gates, gate), u.load(cell.gates, gate + cell.hidden);
    m.load(cell.gates, gate + 2 * cell.hidden), gm.load(cell.gates, gate + 3 * cell.hidden);
    h_before.load(cell.h_before, at);
    dh.add(cell.dy, at), dh.add(cell.dh, at), dh.add(cell.more, at);
#pragma unroll
    for (int e = 0; e < kUnits; ++e) gru_backward(r.x[e], u.x[e], m.x[e], gm.x[e], h_before.x[e], dh.x[e]);
    const std::int64_t third = at + 2 * row * cell.hidden;
    r.store(cell.dx, third), u.store(cell.dx, third + cell.hidden), m.store(cell.dx, third + 2 * cell.hidden);
    r.store(cell.dg, third), u.store(cell.dg, third + cell.hidden),
        gm.store(cell.dg, third + 2 * cell.hidden);
    dh.store(cell.dh_before, at);
  });
}

}  // namespace recurrent

int sm80_gru_cell(const GruCell& cell, void* stream) noexcept {
  using namespace recurrent;
  return launch(cell, SPARSELOOM_CELL_KERNELS(gru_kernel, GruCell),
                {cell.x, cell.g, cell.h_before, cell.gates, cell.h}, stream);
}

int sm80_gru_cell_gradient(const GruCellGradient& cell, void* stream) noexcept {
  using namespace recurrent;
  return launch(cell, SPARSELOOM_CELL_KERNELS(gru_gradient_kernel, GruCellGradient),
                {cell.gates, cell.h_before, cell.dy, cell.dh, cell.more, cell.dx, cell.dg, cell.dh_before},
                stream);
}

}  // namespace sparseloom::kernels::cuda
