// The cells, once for numbers, vectors and CUDA threads. Included where `sigmoid` and `tangent` of V are
// known and SPARSELOOM_CELL says how functions are declared.

// The memory layout of a unit's four gates: the first, and the stride to the next ones.
struct GatesAt {
  std::int64_t first, apart;
};
template <class Cell>
SPARSELOOM_CELL GatesAt gates_at(const Cell& cell, std::int64_t row, std::int64_t unit) {
  const std::int64_t at = row * 4 * cell.hidden + unit;
  if (cell.side == 0) return {at, cell.hidden};
  // 32 bits: a division of 64 takes a GPU some hundred instructions
  const std::uint32_t side = static_cast<std::uint32_t>(cell.side);
  return {at + 3 * std::int64_t{static_cast<std::uint32_t>(unit) / side * side}, cell.side};
}

// In: z of the gates and the previous c. Out: the gates, c and h.
template <class V>
SPARSELOOM_CELL void lstm_forward(V& i, V& f, V& g, V& o, V& c, V& h) {
  i = sigmoid(i), f = sigmoid(f), g = tangent(g), o = sigmoid(o);
  c = f * c + i * g;
  h = o * tangent(c);
}

// In: the gates and the gradient of c. Out: the gradients of z and of the previous c.
template <class V>
SPARSELOOM_CELL void lstm_backward(V& i, V& f, V& g, V& o, const V& c_before, const V& c, const V& dh,
                                   V& dc) {
  const V t = tangent(c), all = dc + dh * o * (1.0f - t * t);
  const V di = all * g * i * (1.0f - i), dg = all * i * (1.0f - g * g);
  dc = all * f;
  f = all * c_before * f * (1.0f - f);
  o = dh * t * o * (1.0f - o);
  i = di, g = dg;
}

// In: x and g by gate, the previous h. Out: r, u and m in x, and h. g's third of m is unchanged.
template <class V>
SPARSELOOM_CELL void gru_forward(V& r, V& u, V& m, const V& gr, const V& gu, const V& gm, const V& h_before,
                                 V& h) {
  r = sigmoid(r + gr), u = sigmoid(u + gu), m = tangent(m + r * gm);
  h = m + u * (h_before - m);
}

// In: r, u, m, g's third of m, and dh. Out: the gradients of x in r, u and m, that of gm in gm, and in dh the
// gradient that reaches the previous h.
template <class V>
SPARSELOOM_CELL void gru_backward(V& r, V& u, V& m, V& gm, const V& h_before, V& dh) {
  const V dm = dh * (1.0f - u) * (1.0f - m * m), du = dh * (h_before - m) * u * (1.0f - u);
  const V dr = dm * gm * r * (1.0f - r);
  gm = dm * r;
  dh = dh * u;
  r = dr, u = du, m = dm;
}
