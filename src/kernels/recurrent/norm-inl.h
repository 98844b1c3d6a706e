// The computation of one unit of a unit_norm, once for the CPU and for CUDA threads. Included where
// SPARSELOOM_NORM says how functions are declared.

// `extra`: the number times its scale; used only if `reached`. Returns y before relu.
template <class V>
SPARSELOOM_NORM V norm_value(V normal, V weight, V bias, bool reached, bool multiply, V extra) {
  const V y = normal * weight + bias;
  return !reached ? y : multiply ? y * extra : y + extra;
}

template <class V>
struct NormSlope {
  V before;  // gradient of (normal x weight + bias), before the input was added
  V extra;   // gradient of `extra`
};
template <class V>
SPARSELOOM_NORM NormSlope<V> norm_slope(V dy, V normal, V weight, V bias, bool reached, bool multiply,
                                        V extra, bool relu) {
  const V plain = normal * weight + bias;
  const V y = !reached ? plain : multiply ? plain * extra : plain + extra;
  const V d = relu && y <= V(0) ? V(0) : dy;
  if (!reached) return {d, V(0)};
  return multiply ? NormSlope<V>{d * extra, d * plain} : NormSlope<V>{d, d};
}
