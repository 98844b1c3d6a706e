// The LSTM's cell and its gradient.
#include "kernels/recurrent/sm80/cells.h"
#include "kernels/recurrent/sm80/lanes.cuh"

namespace sparseloom::kernels::cuda {
namespace recurrent {

template <class Element, int kUnits>
__global__ void __launch_bounds__(kThreads) lstm_kernel(const __grid_constant__ LstmCell cell) {
  each<kUnits>(cell.n, cell.hidden, [&](std::int64_t row, std::int64_t unit) {
    const std::int64_t at = row * cell.hidden + unit;
    const auto [gate, apart] = gates_at(cell, row, unit);
    Units<Element, kUnits> i, f, g, o, h;
    Units<row::F32, kUnits> c;
    i.load(cell.z, gate), f.load(cell.z, gate + apart);
    g.load(cell.z, gate + 2 * apart), o.load(cell.z, gate + 3 * apart);
    c.load(cell.c_before, at);
#pragma unroll
    for (int e = 0; e < kUnits; ++e) lstm_forward(i.x[e], f.x[e], g.x[e], o.x[e], c.x[e], h.x[e]);
    c.store(cell.c, at), h.store(cell.h, at);
    if (cell.gates == nullptr) return;
    i.store(cell.gates, gate), f.store(cell.gates, gate + apart);
    g.store(cell.gates, gate + 2 * apart), o.store(cell.gates, gate + 3 * apart);
  });
}

template <class Element, int kUnits>
__global__ void __launch_bounds__(kThreads)
    lstm_gradient_kernel(const __grid_constant__ LstmCellGradient cell) {
  each<kUnits>(cell.n, cell.hidden, [&](std::int64_t row, std::int64_t unit) {
    const std::int64_t at = row * cell.hidden + unit;
    const auto [gate, apart] = gates_at(cell, row, unit);
    Units<Element, kUnits> i, f, g, o, dh{};
    Units<row::F32, kUnits> c_before, c, dc;
    i.load(cell.gates, gate), f.load(cell.gates, gate + apart);
    g.load(cell.gates, gate + 2 * apart), o.load(cell.gates, gate + 3 * apart);
    c_before.load(cell.c_before, at), c.load(cell.c, at), dc.load(cell.dc, at);
    dh.add(cell.dy, at), dh.add(cell.dh, at);
#pragma unroll
    for (int e = 0; e < kUnits; ++e)
      lstm_backward(i.x[e], f.x[e], g.x[e], o.x[e], c_before.x[e], c.x[e], dh.x[e], dc.x[e]);
    dc.store(cell.dc, at);
    i.store(cell.dz, gate), f.store(cell.dz, gate + apart);
    g.store(cell.dz, gate + 2 * apart), o.store(cell.dz, gate + 3 * apart);
  });
}

}  // namespace recurrent

int sm80_lstm_cell(const LstmCell& cell, void* stream) noexcept {
  using namespace recurrent;
  return launch(cell, SPARSELOOM_CELL_KERNELS(lstm_kernel, LstmCell),
                {cell.z, cell.c_before, cell.gates, cell.c, cell.h}, stream);
}

int sm80_lstm_cell_gradient(const LstmCellGradient& cell, void* stream) noexcept {
  using namespace recurrent;
  return launch(cell, SPARSELOOM_CELL_KERNELS(lstm_gradient_kernel, LstmCellGradient),
                {cell.gates, cell.c_before, cell.c, cell.dy, cell.dh, cell.dc, cell.dz}, stream);
}

}  // namespace sparseloom::kernels::cuda
