// Shared by the Products of floats; each adds its `step`. Included inside an instruction set's region, after
// vector.h.
struct FloatProduct {
  static constexpr bool kExact = false;  // sums round, so long ones are drained (panel-inl.h)
  /// Converts a cell of the input to the product's form.
  [[gnu::always_inline]] static Vec prepare(Vec cell) { return cell; }
  /// Converts the sums [8][row] of a strip to fp32 values in place. Returns `factors` filled with the scales
  /// of the 8 outputs if the product has any, otherwise null.
  [[gnu::always_inline]] static const float* finish(const cpu::PanelJob&, const cpu::Strip&, float*,
                                                    std::int64_t, float*) {
    return nullptr;
  }
};
