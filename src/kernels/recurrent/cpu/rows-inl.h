// The cells over a row of units. Included after cell-inl.h, where Lanes<T> loads and stores some units of
// dtype T as V, `kUnits` at a time, and C<T> is the dtype of the state.

template <class T>
[[gnu::always_inline]] inline void lstm_row(const LstmCell& cell, std::int64_t row, std::int64_t begin,
                                            std::int64_t end) {
  using L = Lanes<T>;
  using S = Lanes<C<T>>;
  const T* const z = static_cast<const T*>(cell.z);
  T* const gates = static_cast<T*>(cell.gates);
  for (std::int64_t j = begin; j < end; j += L::kUnits) {
    const std::int64_t n = std::min<std::int64_t>(L::kUnits, end - j), at = row * cell.hidden + j;
    const auto [gate, apart] = gates_at(cell, row, j);
    auto i = L::load(z + gate, n), f = L::load(z + gate + apart, n);
    auto g = L::load(z + gate + 2 * apart, n), o = L::load(z + gate + 3 * apart, n);
    auto c = S::load(static_cast<const C<T>*>(cell.c_before) + at, n), h = c;
    lstm_forward(i, f, g, o, c, h);
    S::store(static_cast<C<T>*>(cell.c) + at, c, n);
    L::store(static_cast<T*>(cell.h) + at, h, n);
    if (gates == nullptr) continue;
    L::store(gates + gate, i, n), L::store(gates + gate + apart, f, n);
    L::store(gates + gate + 2 * apart, g, n), L::store(gates + gate + 3 * apart, o, n);
  }
}

// The sum of the gradients of h that exist.
template <class T>
[[gnu::always_inline]] inline auto sum_of(std::initializer_list<const void*> all, std::int64_t at,
                                          std::int64_t n) {
  auto sum = Lanes<T>::zero();
  for (const void* each : all)
    if (each != nullptr) sum = sum + Lanes<T>::load(static_cast<const T*>(each) + at, n);
  return sum;
}

template <class T>
[[gnu::always_inline]] inline void lstm_gradient_row(const LstmCellGradient& cell, std::int64_t row,
                                                     std::int64_t begin, std::int64_t end) {
  using L = Lanes<T>;
  using S = Lanes<C<T>>;
  const T* const gates = static_cast<const T*>(cell.gates);
  T* const dz = static_cast<T*>(cell.dz);
  for (std::int64_t j = begin; j < end; j += L::kUnits) {
    const std::int64_t n = std::min<std::int64_t>(L::kUnits, end - j), at = row * cell.hidden + j;
    const auto [gate, apart] = gates_at(cell, row, j);
    auto i = L::load(gates + gate, n), f = L::load(gates + gate + apart, n);
    auto g = L::load(gates + gate + 2 * apart, n), o = L::load(gates + gate + 3 * apart, n);
    C<T>* const state = static_cast<C<T>*>(cell.dc) + at;
    auto dc = S::load(state, n);
    lstm_backward(i, f, g, o, S::load(static_cast<const C<T>*>(cell.c_before) + at, n),
                  S::load(static_cast<const C<T>*>(cell.c) + at, n), sum_of<T>({cell.dy, cell.dh}, at, n),
                  dc);
    S::store(state, dc, n);
    L::store(dz + gate, i, n), L::store(dz + gate + apart, f, n);
    L::store(dz + gate + 2 * apart, g, n), L::store(dz + gate + 3 * apart, o, n);
  }
}

template <class T>
[[gnu::always_inline]] inline void gru_row(const GruCell& cell, std::int64_t row, std::int64_t begin,
                                           std::int64_t end) {
  using L = Lanes<T>;
  const std::int64_t hidden = cell.hidden;
  const T *const x = static_cast<const T*>(cell.x) + row * 3 * hidden, *const p =
                                                                           static_cast<const T*>(cell.g) +
                                                                           row * 3 * hidden;
  T* const gates = cell.gates == nullptr ? nullptr : static_cast<T*>(cell.gates) + row * 4 * hidden;
  for (std::int64_t j = begin; j < end; j += L::kUnits) {
    const std::int64_t n = std::min<std::int64_t>(L::kUnits, end - j), at = row * hidden + j;
    auto r = L::load(x + j, n), u = L::load(x + hidden + j, n), m = L::load(x + 2 * hidden + j, n);
    const auto gm = L::load(p + 2 * hidden + j, n);
    auto h = L::zero();
    gru_forward(r, u, m, L::load(p + j, n), L::load(p + hidden + j, n), gm,
                L::load(static_cast<const T*>(cell.h_before) + at, n), h);
    L::store(static_cast<T*>(cell.h) + at, h, n);
    if (gates == nullptr) continue;
    L::store(gates + j, r, n), L::store(gates + hidden + j, u, n);
    L::store(gates + 2 * hidden + j, m, n), L::store(gates + 3 * hidden + j, gm, n);
  }
}

template <class T>
[[gnu::always_inline]] inline void gru_gradient_row(const GruCellGradient& cell, std::int64_t row,
                                                    std::int64_t begin, std::int64_t end) {
  using L = Lanes<T>;
  const std::int64_t hidden = cell.hidden;
  const T* const gates = static_cast<const T*>(cell.gates) + row * 4 * hidden;
  T *const dx = static_cast<T*>(cell.dx) + row * 3 * hidden, *const dg =
                                                                 static_cast<T*>(cell.dg) + row * 3 * hidden;
  for (std::int64_t j = begin; j < end; j += L::kUnits) {
    const std::int64_t n = std::min<std::int64_t>(L::kUnits, end - j), at = row * hidden + j;
    auto r = L::load(gates + j, n), u = L::load(gates + hidden + j, n);
    auto m = L::load(gates + 2 * hidden + j, n), gm = L::load(gates + 3 * hidden + j, n);
    auto dh = sum_of<T>({cell.dy, cell.dh, cell.more}, at, n);
    gru_backward(r, u, m, gm, L::load(static_cast<const T*>(cell.h_before) + at, n), dh);
    L::store(dx + j, r, n), L::store(dx + hidden + j, u, n), L::store(dx + 2 * hidden + j, m, n);
    L::store(dg + j, r, n), L::store(dg + hidden + j, u, n), L::store(dg + 2 * hidden + j, gm, n);
    L::store(static_cast<T*>(cell.dh_before) + at, dh, n);
  }
}

#define SPARSELOOM_CELL_BY_DTYPE(name, Cell)                                                    \
  void name##_units(const Cell& cell, std::int64_t row, std::int64_t begin, std::int64_t end) { \
    switch (cell.dtype) {                                                                       \
      SPARSELOOM_CELL_DTYPES(name)                                                              \
      default: return name##_row<F32>(cell, row, begin, end);                                   \
    }                                                                                           \
  }
SPARSELOOM_CELL_BY_DTYPE(lstm, LstmCell)
SPARSELOOM_CELL_BY_DTYPE(lstm_gradient, LstmCellGradient)
SPARSELOOM_CELL_BY_DTYPE(gru, GruCell)
SPARSELOOM_CELL_BY_DTYPE(gru_gradient, GruCellGradient)
#undef SPARSELOOM_CELL_BY_DTYPE
