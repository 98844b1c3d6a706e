// Decode's dx, and the choice of the function for a call. Included inside an instruction set's region, after
// decode_forward-inl.h. Lanes hold a strip of a block's columns; every row of the block adds dY[t, row] times
// itself.

// Whether a dx strip has two vectors: if the block is wide enough and the accumulators of all tokens fit into
// half of the registers.
constexpr bool two_vectors(int tokens, std::int64_t block_cols) {
  return block_cols >= 2 * kLanes && 2 * tokens <= kRegisters / 2;
}

template <class T, int kTokens, int kVectors>
void decode_dx_strips(const MatmulArgs& args, cpu::DecodeRange units) {
  constexpr std::int64_t kStrip = kVectors * kLanes;
  const IndexView& w = args.index;
  const std::int64_t bm = w.block.rows, bn = w.block.cols, elements = w.block_elements();
  alignas(64) float dy[kTokens][cpu::kMaxBlock];  // dY of one block row, widened and zero-padded
  for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
    const std::int64_t output = unit * kStrip;
    if (output >= w.cols) continue;
    const std::int64_t column = output / bn;
    const T* strip = static_cast<const T*>(args.values) + output % bn;
    Vec acc[kTokens][kVectors];
    unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
      unroll<kVectors>(SPARSELOOM_UNROLLED(v) { acc[t.value][v.value] = zero(); });
    });
    const auto add_block = [&](std::int64_t i) __attribute__((always_inline)) {
      // Widen dY of the block's rows.
      const std::int64_t row = std::int64_t{args.transposed.row[i]} * bm;
      for (int t = 0; t < kTokens; ++t) {
        const T* source =
            static_cast<const T*>(args.a) + std::min<std::int64_t>(t, args.m - 1) * args.a_stride + row;
        for (std::int64_t k = 0; k < bm; k += 8) {
          const std::int64_t left = w.rows - row - k;
          narrow8(&dy[t][k], left >= 8  ? widen8(source + k)
                             : left > 0 ? widen8_first(source + k, left)
                                        : _mm256_setzero_ps());
        }
      }
      // Multiply.
      const T* block = strip + args.transposed.slot[i] * elements;
      for (std::int64_t k = 0; k < bm; ++k) {
        Vec weight[kVectors];
        unroll<kVectors>(
            SPARSELOOM_UNROLLED(v) { weight[v.value] = widen(block + k * bn + v.value * kLanes); });
        unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
          const Vec factor = splat(&dy[t.value][k]);
          unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
            acc[t.value][v.value] = fma(acc[t.value][v.value], factor, weight[v.value]);
          });
        });
      }
    };
    in_chains(args.transposed.ccol[column], args.transposed.ccol[column + 1], bm, acc, add_block);
    // Write the strip of each token.
    T* out = static_cast<T*>(args.out) + output;
    unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
      if (t.value >= args.m) return;
      unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
        const std::int64_t left = w.cols - output - v.value * kLanes;
        T* p = out + t.value * args.out_stride + v.value * kLanes;
        if (left >= kLanes)
          narrow(p, acc[t.value][v.value]);
        else if (left > 0)
          narrow_first(p, acc[t.value][v.value], left);
      });
    });
  }
}

template <class T, int kTokens>
void decode_dx(const MatmulArgs& args, cpu::DecodeRange units) {
  if constexpr (2 * kTokens <= kRegisters / 2)
    if (two_vectors(kTokens, args.index.block.cols)) return decode_dx_strips<T, kTokens, 2>(args, units);
  decode_dx_strips<T, kTokens, 1>(args, units);
}

template <class T>
cpu::DecodeFunction decode_dx_of(std::int64_t tokens) {
  switch (rounded_tokens(tokens)) {
    case 1: return decode_dx<T, 1>;
    case 2: return decode_dx<T, 2>;
    case 4: return decode_dx<T, 4>;
    default: return decode_dx<T, 8>;
  }
}

template <class T>
cpu::DecodeFunction decode_of(Direction direction, std::int64_t tokens) {
  return direction == Direction::forward ? decode_forward_of<T>(tokens) : decode_dx_of<T>(tokens);
}

cpu::DecodeFunction choose_decode(DType dtype, Direction direction, std::int64_t tokens) {
  switch (dtype) {
    case DType::f16: return decode_of<cpu::F16>(direction, tokens);
    case DType::bf16: return decode_of<cpu::Bf16>(direction, tokens);
    default: return decode_of<float>(direction, tokens);
  }
}

std::int64_t dx_strip(std::int64_t tokens, std::int64_t block_cols) {
  return two_vectors(rounded_tokens(tokens), block_cols) ? 2 * kLanes : kLanes;
}
