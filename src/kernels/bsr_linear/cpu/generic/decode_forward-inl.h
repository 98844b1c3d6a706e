// Decode's forward product. Included inside an instruction set's region, after chain-inl.h and dot-inl.h. It
// computes dot products, with k on lanes, of a few outputs x all tokens at a time.

// Tokens are computed 1, 2, 4 or 8 at a time; those past m repeat the last token and are not written. One
// token computes four outputs at a time (AVX-512), not eight, since each output's row is one more memory
// stream. Measured faster.
template <int kTokens>
constexpr int kDotOutputs = std::clamp(kRegisters / 2 / kTokens, 1, kRegisters / 8);

// Adds the lanes of each sum to [output][token]. If there are as many sums as lanes, all are added at once:
// with AVX-512 that takes 30 shuffles instead of 130, which at density .05 would exceed the products of 4096
// features.
template <int kOutputs, int kTokens>
[[gnu::always_inline]] inline void add_lanes(const Vec (&sums)[kOutputs][kTokens],
                                             float (*tile)[cpu::kDecodeTokens]) {
  if constexpr (kOutputs * kTokens == kLanes) {
    Vec flat[kLanes];
    unroll<kLanes>(SPARSELOOM_UNROLLED(i) { flat[i.value] = sums[i.value / kTokens][i.value % kTokens]; });
    alignas(64) float all[kLanes];
    store(all, sum_lanes(flat));
    unroll<kOutputs>(SPARSELOOM_UNROLLED(i) {
      for (int t = 0; t < kTokens; ++t) tile[i.value][t] += all[i.value * kTokens + t];
    });
  } else {
    unroll<kOutputs>(SPARSELOOM_UNROLLED(i) {
      unroll<kTokens>(SPARSELOOM_UNROLLED(t) { tile[i.value][t.value] += sum(sums[i.value][t.value]); });
    });
  }
}

template <class T, int kTokens>
void decode_forward(const MatmulArgs& args, cpu::DecodeRange units) {
  constexpr int kOutputs = kDotOutputs<kTokens>;
  const IndexView& w = args.index;
  const std::int64_t bm = w.block.rows, bn = w.block.cols, elements = w.block_elements(),
                     last_column = w.block_cols() - 1,
                     chain = kLongestChain / (bn / Dot<T>::kElements);  // blocks
  // In a ragged last block column the products read a zero-padded copy of x, since memory past the row's end
  // may not be read.
  alignas(64) T edge[kTokens][cpu::kMaxBlock] = {};
  const T* x[kTokens];
  const std::int64_t ragged = w.cols % bn;
  for (int t = 0; t < kTokens; ++t) {
    x[t] = static_cast<const T*>(args.a) + std::min<std::int64_t>(t, args.m - 1) * args.a_stride;
    if (ragged)
      std::memcpy(static_cast<void*>(edge[t]), x[t] + last_column * bn,
                  static_cast<std::size_t>(ragged) * sizeof(T));
  }
  for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
    const std::int64_t output = unit * cpu::kGroup;
    if (output >= w.rows) continue;
    const std::int64_t row = output / bm, first = w.crow[row], last = w.crow[row + 1];
    const T* strip = static_cast<const T*>(args.values) + output % bm * bn;
    const T* next_row =
        cpu::next_row(static_cast<const T*>(args.values) + last * elements, (last - first) * elements);
    alignas(64) float tile[cpu::kGroup][cpu::kDecodeTokens] = {};
    // A chain of additions is limited to so many blocks; a longer row takes several passes over the 8
    // outputs.
    for (std::int64_t from = first, to; from < last; from = to) {
      to = std::min(last, from + chain);
      for (int o = 0; o < cpu::kGroup; o += kOutputs) {
        Vec acc[kOutputs][kTokens];
        unroll<kOutputs>(SPARSELOOM_UNROLLED(i) {
          unroll<kTokens>(SPARSELOOM_UNROLLED(t) { acc[i.value][t.value] = zero(); });
        });
        for (std::int64_t b = from; b < to; ++b) {
          const T* block = strip + b * elements + o * bn;
          // Each pass over the block row prefetches a share of the next block row, see stream.h.
          cpu::stream_ahead(next_row, ((output % bm + o) * (last - first) + (b - first) * kOutputs) * bn,
                            kOutputs * bn);
          // Multiply one block.
          const bool at_edge = ragged && w.col[b] == last_column;
          const std::int64_t column = std::int64_t{w.col[b]} * bn;
          const T* row_x[kTokens];
          unroll<kTokens>(
              SPARSELOOM_UNROLLED(t) { row_x[t.value] = at_edge ? edge[t.value] : x[t.value] + column; });
          for (std::int64_t k = 0; k < bn; k += Dot<T>::kElements) {
            Vec weight[kOutputs];
            unroll<kOutputs>(
                SPARSELOOM_UNROLLED(i) { weight[i.value] = Dot<T>::load(block + i.value * bn + k); });
            unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
              const Vec token = Dot<T>::load(row_x[t.value] + k);
              unroll<kOutputs>(SPARSELOOM_UNROLLED(i) {
                acc[i.value][t.value] = Dot<T>::step(acc[i.value][t.value], token, weight[i.value]);
              });
            });
          }
        }
        add_lanes(acc, tile + o);
      }
    }
    // Epilogue of the 8 outputs.
    cpu::write_tile(
        {tile[0], cpu::kDecodeTokens, args.m, std::min<std::int64_t>(cpu::kGroup, w.rows - output),
         args.dtype, args.activation, args.bias ? static_cast<const T*>(args.bias) + output : nullptr,
         static_cast<T*>(args.out) + output, args.out_stride, nullptr,
         args.residual ? static_cast<const T*>(args.residual) + output : nullptr, args.residual_stride});
  }
}

constexpr int rounded_tokens(std::int64_t tokens) {
  return tokens <= 1 ? 1 : tokens <= 2 ? 2 : tokens <= 4 ? 4 : 8;
}

template <class T>
cpu::DecodeFunction decode_forward_of(std::int64_t tokens) {
  switch (rounded_tokens(tokens)) {
    case 1: return decode_forward<T, 1>;
    case 2: return decode_forward<T, 2>;
    case 4: return decode_forward<T, 4>;
    default: return decode_forward<T, 8>;
  }
}
