// The operand loads of a dot product with k on lanes: the elements of a step, and the step itself. Included
// inside an instruction set's region, after vector.h.
template <class T>
struct Dot {
  static constexpr int kElements = kLanes;
  [[gnu::always_inline]] static Vec load(const T* p) { return widen(p); }
  [[gnu::always_inline]] static Vec step(Vec acc, Vec x, Vec w) { return fma(acc, x, w); }
};
