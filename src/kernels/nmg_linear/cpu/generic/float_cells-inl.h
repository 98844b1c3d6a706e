// Cells of dW of a token in fp32. Included inside an instruction set's region, after grouped-inl.h.

// A token a cell.
struct Cells {
  static constexpr std::int64_t kTokens = 1;
  template <class T>
  [[gnu::always_inline]] static Vec pack(const cpu::TokenMatrix& matrix, std::int64_t token,
                                         std::int64_t feature, std::int64_t inside) {
    return features_of<T>(matrix, token, feature, inside);
  }
  [[gnu::always_inline]] static Vec step(Vec sum, Vec dy, Vec x) { return fma(sum, dy, x); }
};
