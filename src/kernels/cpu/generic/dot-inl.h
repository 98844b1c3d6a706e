// How a dot product with k on lanes takes its operands, included inside a region after vector.h: elements a
// step, and the step.
template <class T>
struct Dot {
  static constexpr int kElements = kLanes;
  [[gnu::always_inline]] static Vec load(const T* p) { return widen(p); }
  [[gnu::always_inline]] static Vec step(Vec acc, Vec x, Vec w) { return fma(acc, x, w); }
};
