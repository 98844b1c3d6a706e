// What the products of floats share, included inside a region after vector.h; a Product adds `step`.
struct FloatProduct {
  static constexpr bool kExact = false;  // sums round, so long ones are drained (panel-inl.h)
  /// A cell of the input as the product wants it.
  [[gnu::always_inline]] static Vec prepare(Vec cell) { return cell; }
  /// Sums [8][row] of a strip to fp32 values; `factors` [8] of its outputs when the product has them, else
  /// null.
  [[gnu::always_inline]] static const float* finish(const cpu::PanelJob&, const cpu::Strip&, float*,
                                                    std::int64_t, float*) {
    return nullptr;
  }
};
