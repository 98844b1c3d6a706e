// The epilogue of finished tiles (bias, activation, rounding), kLanes outputs of kLanes tokens at a time, and
// of finished rows.
// Included inside an instruction set's region, after its vector.h and the activations.

template <class T, class Function>
[[gnu::always_inline]] inline void write_square(const cpu::TileOut& o, std::int64_t first, std::int64_t t,
                                                Function act) {
  const std::int64_t outputs = std::min<std::int64_t>(kLanes, o.outputs - first);
  const auto read = [&](const T* row) __attribute__((always_inline)) {
    return outputs == kLanes ? widen(row) : widen_first(row, outputs);
  };
  const Vec bias = o.bias ? read(static_cast<const T*>(o.bias) + first) : zero();
  const float one = 1.0f;
  const Vec scale = o.scale ? widen(o.scale + first) : splat(&one);
  const auto finish = [&](Vec x) __attribute__((always_inline)) { return act(fma(bias, x, scale)); };
  const auto more = [&](std::int64_t token) __attribute__((always_inline)) {
    return read(static_cast<const T*>(o.residual) + token * o.residual_stride + first);
  };
  // Transpose [output][token] to [token][output].
  Vec square[kLanes];
  unroll<kLanes>(
      SPARSELOOM_UNROLLED(i) { square[i.value] = load(o.tile + (first + i.value) * o.tile_stride + t); });
  transpose(square);
  T* out = static_cast<T*>(o.out) + t * o.out_stride + first;
  if (outputs == kLanes && t + kLanes <= o.tokens) {
    unroll<kLanes>(SPARSELOOM_UNROLLED(i) { square[i.value] = finish(square[i.value]); });
    if (o.residual)
      unroll<kLanes>(SPARSELOOM_UNROLLED(i) { square[i.value] = square[i.value] + more(t + i.value); });
    unroll<kLanes>(SPARSELOOM_UNROLLED(i) { narrow(out + i.value * o.out_stride, square[i.value]); });
  } else {  // at an edge
    const std::int64_t tokens = std::min<std::int64_t>(kLanes, o.tokens - t);
    alignas(64) float rows[kLanes][kLanes];
    unroll<kLanes>(SPARSELOOM_UNROLLED(i) { store(rows[i.value], finish(square[i.value])); });
    for (std::int64_t i = 0; i < tokens; ++i) {
      const Vec row = load(rows[i]);
      narrow_first(out + i * o.out_stride, o.residual ? row + more(t + i) : row, outputs);
    }
  }
}

template <class T, class Function>
[[gnu::always_inline]] inline void write_with(const cpu::TileOut& o, Function act) {
  for (std::int64_t t = 0; t < o.tokens; t += kLanes)
    for (std::int64_t first = 0; first < o.outputs; first += kLanes) write_square<T>(o, first, t, act);
}

template <class T>
void write_as(const cpu::TileOut& o) {
  if (o.activation == Activation::none)
    return write_with<T>(
        o, [&](Vec x) __attribute__((always_inline)) { return x; });
  with_activation<sizeof(T) == 2>(
      o.activation, [&](auto function) __attribute__((always_inline)) { write_with<T>(o, function); });
}

void write(const cpu::TileOut& out) {
  switch (out.dtype) {
    case DType::f16: return write_as<cpu::F16>(out);
    case DType::bf16: return write_as<cpu::Bf16>(out);
    default: return write_as<float>(out);
  }
}

template <class T, class Function>
[[gnu::always_inline]] inline void finish_with(const cpu::RowsOut& o, Function act) {
  for (std::int64_t t = 0; t < o.tokens; ++t) {
    T* const out = static_cast<T*>(o.out) + t * o.out_stride;
    const T* const residual =
        o.residual == nullptr ? nullptr : static_cast<const T*>(o.residual) + t * o.residual_stride;
    std::int64_t i = 0;
    for (; i + kLanes <= o.outputs; i += kLanes) {
      const Vec y = act(widen(out + i));
      narrow(out + i, residual ? y + widen(residual + i) : y);
    }
    if (const std::int64_t left = o.outputs - i; left > 0) {
      const Vec y = act(widen_first(out + i, left));
      narrow_first(out + i, residual ? y + widen_first(residual + i, left) : y, left);
    }
  }
}

template <class T>
void finish_as(const cpu::RowsOut& o) {
  if (o.activation == Activation::none)
    return finish_with<T>(
        o, [&](Vec x) __attribute__((always_inline)) { return x; });
  with_activation<sizeof(T) == 2>(
      o.activation, [&](auto function) __attribute__((always_inline)) { finish_with<T>(o, function); });
}

void finish(const cpu::RowsOut& out) {
  switch (out.dtype) {
    case DType::f16: return finish_as<cpu::F16>(out);
    case DType::bf16: return finish_as<cpu::Bf16>(out);
    default: return finish_as<float>(out);
  }
}
