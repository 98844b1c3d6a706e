// The decode product, included inside an instruction set's region after its vector.h.
//   forward: dot products, k on lanes; a few outputs x all tokens at a time
//   dx:      a strip of a block's columns on lanes; every row of the block adds dY[t, row] times itself

// Tokens are computed 1, 2, 4 or 8 at a time; those beyond m repeat the last and are not written.
template <int kTokens>
constexpr int kDotOutputs = std::clamp(kRegisters / 2 / kTokens, 1, kRegisters / 4);

template <class T, int kTokens>
void decode_forward(const MatmulArgs& args, cpu::DecodeRange units) {
  constexpr int kOutputs = kDotOutputs<kTokens>;
  const IndexView& w = args.index;
  const std::int64_t bm = w.block.rows, bn = w.block.cols, elements = w.block_elements(), last_column = w.block_cols() - 1;
  // The ragged last block column reads a zero-padded copy of x: memory past the row's end is not ours to read.
  alignas(64) T edge[kTokens][cpu::kMaxBlock] = {};
  const T* x[kTokens];
  const std::int64_t ragged = w.cols % bn;
  for (int t = 0; t < kTokens; ++t) {
    x[t] = static_cast<const T*>(args.a) + std::min<std::int64_t>(t, args.m - 1) * args.a_stride;
    if (ragged) std::memcpy(static_cast<void*>(edge[t]), x[t] + last_column * bn, static_cast<std::size_t>(ragged) * sizeof(T));
  }
  for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
    const std::int64_t output = unit * cpu::kGroup;
    if (output >= w.rows) continue;
    const std::int64_t row = output / bm, first = w.crow[row], last = w.crow[row + 1];
    const T* strip = static_cast<const T*>(args.values) + output % bm * bn;
    const T* next_row = cpu::next_row(static_cast<const T*>(args.values) + last * elements, (last - first) * elements);
    alignas(64) float tile[cpu::kGroup][cpu::kDecodeTokens] = {};
    for (int o = 0; o < cpu::kGroup; o += kOutputs) {
      Vec acc[kOutputs][kTokens];
      unroll<kOutputs>(SPARSELOOM_UNROLLED(i) { unroll<kTokens>(SPARSELOOM_UNROLLED(t) { acc[i.value][t.value] = zero(); }); });
      for (std::int64_t b = first; b < last; ++b) {
        const T* block = strip + b * elements + o * bn;
        // Each pass over the row's blocks asks for its share of the next row: see stream.h.
        cpu::stream_to_l2(next_row, ((output % bm + o) * (last - first) + (b - first) * kOutputs) * bn, kOutputs * bn);
        const bool at_edge = ragged && w.col[b] == last_column;
        const std::int64_t column = std::int64_t{w.col[b]} * bn;
        const T* row_x[kTokens];
        unroll<kTokens>(SPARSELOOM_UNROLLED(t) { row_x[t.value] = at_edge ? edge[t.value] : x[t.value] + column; });
        for (std::int64_t k = 0; k < bn; k += kLanes) {
          Vec weight[kOutputs];
          unroll<kOutputs>(SPARSELOOM_UNROLLED(i) { weight[i.value] = widen(block + i.value * bn + k); });
          unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
            const Vec token = widen(row_x[t.value] + k);
            unroll<kOutputs>(
                SPARSELOOM_UNROLLED(i) { acc[i.value][t.value] = fma(acc[i.value][t.value], token, weight[i.value]); });
          });
        }
      }
      unroll<kOutputs>(SPARSELOOM_UNROLLED(i) {
        unroll<kTokens>(SPARSELOOM_UNROLLED(t) { tile[o + i.value][t.value] = sum(acc[i.value][t.value]); });
      });
    }
    cpu::write_tile({tile[0], cpu::kDecodeTokens, args.m, std::min<std::int64_t>(cpu::kGroup, w.rows - output), args.dtype,
                     args.activation, args.bias ? static_cast<const T*>(args.bias) + output : nullptr,
                     static_cast<T*>(args.out) + output, args.out_stride});
  }
}

// Vectors of one dx strip: two where the accumulators of all tokens fit beside them and the block is that wide.
constexpr bool two_vectors(int tokens, std::int64_t block_cols) { return block_cols >= 2 * kLanes && 2 * tokens <= kRegisters / 2; }

template <class T, int kTokens, int kVectors>
void decode_dx_strips(const MatmulArgs& args, cpu::DecodeRange units) {
  constexpr std::int64_t kStrip = kVectors * kLanes;
  const IndexView& w = args.index;
  const std::int64_t bm = w.block.rows, bn = w.block.cols, elements = w.block_elements();
  alignas(64) float dy[kTokens][cpu::kMaxBlock];  // of one block row, widened and zero-padded
  for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
    const std::int64_t output = unit * kStrip;
    if (output >= w.cols) continue;
    const std::int64_t column = output / bn;
    const T* strip = static_cast<const T*>(args.values) + output % bn;
    Vec acc[kTokens][kVectors];
    unroll<kTokens>(SPARSELOOM_UNROLLED(t) { unroll<kVectors>(SPARSELOOM_UNROLLED(v) { acc[t.value][v.value] = zero(); }); });
    for (std::int64_t i = args.transposed.ccol[column]; i < args.transposed.ccol[column + 1]; ++i) {
      const std::int64_t row = std::int64_t{args.transposed.row[i]} * bm;
      for (int t = 0; t < kTokens; ++t) {
        const T* source = static_cast<const T*>(args.a) + std::min<std::int64_t>(t, args.m - 1) * args.a_stride + row;
        for (std::int64_t k = 0; k < bm; k += 8) {
          const std::int64_t left = w.rows - row - k;
          narrow8(&dy[t][k], left >= 8 ? widen8(source + k) : left > 0 ? widen8_first(source + k, left) : _mm256_setzero_ps());
        }
      }
      const T* block = strip + args.transposed.slot[i] * elements;
      for (std::int64_t k = 0; k < bm; ++k) {
        Vec weight[kVectors];
        unroll<kVectors>(SPARSELOOM_UNROLLED(v) { weight[v.value] = widen(block + k * bn + v.value * kLanes); });
        unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
          const Vec factor = splat(&dy[t.value][k]);
          unroll<kVectors>(SPARSELOOM_UNROLLED(v) { acc[t.value][v.value] = fma(acc[t.value][v.value], factor, weight[v.value]); });
        });
      }
    }
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

constexpr int rounded_tokens(std::int64_t tokens) { return tokens <= 1 ? 1 : tokens <= 2 ? 2 : tokens <= 4 ? 4 : 8; }

template <class T>
cpu::DecodeFunction decode_of(Direction direction, std::int64_t tokens) {
  const bool forward = direction == Direction::forward;
  switch (rounded_tokens(tokens)) {
    case 1: return forward ? decode_forward<T, 1> : decode_dx<T, 1>;
    case 2: return forward ? decode_forward<T, 2> : decode_dx<T, 2>;
    case 4: return forward ? decode_forward<T, 4> : decode_dx<T, 4>;
    default: return forward ? decode_forward<T, 8> : decode_dx<T, 8>;
  }
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
