// The pointwise half of one step of a recurrent network: everything but its two products. The products are
// those of bsr_linear: that of the inputs is one for all steps, and so is dW.
#pragma once

#include <cstdint>

#include "sparseloom/dtype.h"
#include "sparseloom/executor.h"
#include "sparseloom/export.h"

namespace sparseloom {

/// One step of an LSTM, for n sequences of `hidden` units. All matrices are dense in memory, row by row, and
/// lie on the executor's device. Gates are in torch.nn.LSTM's order i, f, g, o. The state c is fp64 for fp64,
/// and fp32 for every other dtype: it is a sum over all steps, which 16 bits would round in each.
struct LstmCell {
  DType dtype = DType::f32;  // of z, gates and h
  std::int64_t n = 0, hidden = 0;
  const void* z = nullptr;         // [n, 4 hidden], before the activations
  const void* c_before = nullptr;  // [n, hidden]
  void* gates = nullptr;           // [n, 4 hidden], after them, for the gradient; may be z, or null
  void* c = nullptr;               // [n, hidden]; may be c_before
  void* h = nullptr;               // [n, hidden]
  // 0: a row of z and gates has i of all units, then f, g and o. Else a multiple of 16 that divides hidden:
  // it has the four gates of the first `side` units, then those of the next, as a product with blocks that
  // hold all gates of their units leaves them.
  std::int64_t side = 0;
};

/// c = f c_before + i g, h = o tanh(c), of i, f, o = sigmoid(z) and g = tanh(z), in the dtype of c; h is
/// rounded once. The dtype is f64 (CPU only), f32, f16 or bf16. On CUDA: one launch, queued and not waited
/// for. Throws Error on another dtype, a negative size, a side that does not fit, or a null pointer where
/// null has no meaning.
SPARSELOOM_API void lstm_cell(const LstmCell& cell, const Executor& executor);

/// The gradient of one lstm_cell.
struct LstmCellGradient {
  DType dtype = DType::f32;  // of gates, dh and dz
  std::int64_t n = 0, hidden = 0;
  const void *gates = nullptr, *c_before = nullptr, *c = nullptr;  // of the cell
  // [n, hidden] each, or null: the gradient of h is their sum
  const void *dy = nullptr, *dh = nullptr;
  void* dc = nullptr;     // [n, hidden]: in, the gradient of c; out, that of c_before
  void* dz = nullptr;     // [n, 4 hidden]; may be gates
  std::int64_t side = 0;  // of gates and dz, as in LstmCell
};
SPARSELOOM_API void lstm_cell_gradient(const LstmCellGradient& cell, const Executor& executor);

/// One step of a GRU: r, u = sigmoid(x + g), m = tanh(x + r g), h = (1 - u) m + u h_before, where x and g
/// have a third for each, in torch.nn.GRU's order (r, u, m; torch calls u z and m n).
struct GruCell {
  DType dtype = DType::f32;  // of everything
  std::int64_t n = 0, hidden = 0;
  const void* x = nullptr;         // [n, 3 hidden], the product of the inputs
  const void* g = nullptr;         // [n, 3 hidden], the product of h_before
  const void* h_before = nullptr;  // [n, hidden]
  void* gates = nullptr;           // [n, 4 hidden], or null: r, u, m, and g's third of m, for the gradient
  void* h = nullptr;               // [n, hidden]
};
SPARSELOOM_API void gru_cell(const GruCell& cell, const Executor& executor);

/// The gradient of one gru_cell.
struct GruCellGradient {
  DType dtype = DType::f32;
  std::int64_t n = 0, hidden = 0;
  const void *gates = nullptr, *h_before = nullptr;
  // [n, hidden] each, or null: the gradient of h is their sum
  const void *dy = nullptr, *dh = nullptr, *more = nullptr;
  void *dx = nullptr, *dg = nullptr;  // [n, 3 hidden]
  void* dh_before =
      nullptr;  // [n, hidden]: u dh, what reaches h_before beside the product; may be dy, dh or more
};
SPARSELOOM_API void gru_cell_gradient(const GruCellGradient& cell, const Executor& executor);

}  // namespace sparseloom
