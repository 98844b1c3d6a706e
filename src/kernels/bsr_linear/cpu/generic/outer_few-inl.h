// dW of few tokens: each tile of sums goes from registers to the stored block, whose lines are written once.
// Included inside an instruction set's region, after outer-inl.h. With few tokens there are more stores than
// products, and the tile in memory that outer-inl.h fills would cost as much as the sums themselves.

// kRows rows x kVectors vectors of one stored block, over all tokens of the call.
template <int kRows, int kVectors, class T>
[[gnu::always_inline]] inline void outer_tile(const float* dy, const float* x, std::int64_t steps,
                                              const float* partial, T* out, std::int64_t row) {
  Vec acc[kRows][kVectors];
  unroll<kRows>(SPARSELOOM_UNROLLED(o) {
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) { acc[o.value][v.value] = zero(); });
  });
  for (std::int64_t t = 0; t < steps; ++t) {
    Vec column[kVectors];
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) { column[v.value] = load(x + (v.value * steps + t) * kLanes); });
    unroll<kRows>(SPARSELOOM_UNROLLED(o) {
      const Vec weight = splat(dy + t * cpu::kGroup + o.value);
      unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
        acc[o.value][v.value] = Product::step(acc[o.value][v.value], column[v.value], weight);
      });
    });
  }
  unroll<kRows>(SPARSELOOM_UNROLLED(o) {
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
      const std::int64_t at = o.value * row + v.value * kLanes;
      const Vec sum = acc[o.value][v.value];
      narrow(out + at, partial ? load(partial + at) + sum : sum);
    });
  });
}

template <class Pieces, class T>
void outer_few_as(const cpu::FewOuter& job) {
  const std::int64_t steps = job.steps, row = job.block.cols, subs = job.block.rows / cpu::kGroup;
  std::int64_t block = job.begin / subs, sub = job.begin % subs - 1;
  for (std::int64_t cell = job.begin; cell < job.end; ++cell) {
    if (++sub == subs) sub = 0, ++block;
    const float* const dy = job.dy + sub * steps * cpu::kGroup;
    const float* x = job.x + job.col[block] * row * steps;
    const std::int64_t at = cell * cpu::kGroup * row;
    T* out = static_cast<T*>(job.out) + at;
    const float* partial = job.partial ? job.partial + at : nullptr;
    if constexpr (Pieces::kPieces == 2)
      if (row < kLanes) {
        Pieces::block_rows(dy, x, steps, partial, out);
        continue;
      }
    if (row == kLanes) {  // a single vector: more rows, so that enough sums run side by side
      outer_tile<cpu::kGroup, 1>(dy, x, steps, partial, out, row);
      continue;
    }
    for (std::int64_t column = 0; column < row; column += 2 * kLanes, x += 2 * kLanes * steps)
      for (int half = 0; half < cpu::kGroup; half += kTileOutputs)
        outer_tile<kTileOutputs, 2>(dy + half, x, steps, partial ? partial + half * row + column : nullptr,
                                    out + half * row + column, row);
  }
}

template <class Pieces>
void outer_few(const cpu::FewOuter& job) {
  switch (job.result) {
    case DType::f16: return outer_few_as<Pieces, cpu::F16>(job);
    case DType::bf16: return outer_few_as<Pieces, cpu::Bf16>(job);
    default: return outer_few_as<Pieces, cpu::Cell>(job);
  }
}
