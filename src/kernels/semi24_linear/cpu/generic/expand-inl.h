// The expand kernels. Included inside an instruction set's region, after chain-inl.h and struct template
// Expand<T>:
//
//   kElements                 columns of W of one step
//   X                         the type of the elements of ExpandJob::x
//   prepare(positions, out)   16 bytes, a byte for two groups, in the format of weights()
//   weights(values, bytes)    the step's columns of a row of W: kElements / 2 values, kElements / 8 bytes
//   step(acc, x, w)           acc + the products of the step

// Tokens per pass over a row of W, and rows of W that are multiplied together: each load of x serves all of
// them, and each row is one more stream from memory. The sums fill half of 32 registers, or with 8 tokens
// three quarters of them.
constexpr int kPassTokens = 8;
template <int kTokens>
constexpr int kExpandRows = kTokens == 8 ? 3 : std::min(4, kRegisters / 2 / kTokens);

// Bytes of values by which the loop over columns prefetches.
constexpr std::int64_t kAhead = 2048;

// If there are more tokens than one pass takes, the first pass keeps the expanded vectors of a few rows,
// kKept of each, 24 KB in all, for the later passes: expanding costs a third of a pass's products.
constexpr int kKept = 128, kKeptRows = kExpandRows<kPassTokens>;
enum class Weights { spread, spread_and_kept, kept };

template <class T, int kTokens, int kRows, Weights kWeights>
struct ExpandRows {
  using E = Expand<T>;
  const T* values[kRows];
  const std::uint8_t* positions[kRows];
  const typename E::X* x[kTokens];
  Vec acc[kRows][kTokens];
  // With kept weights: the distance from the values just read to those of the next first pass. They are
  // prefetched then, since memory is otherwise idle.
  std::int64_t values_ahead, positions_ahead;

  // The groups [group, group + kExpandGroups); `from`: the position of their x; `kept`: row r has the vectors
  // from r kKept on.
  [[gnu::always_inline]] void chunk(std::int64_t group, std::int64_t from, Vec* kept) {
    constexpr int kSteps = 4 * cpu::kExpandGroups / E::kElements;
    alignas(16) std::uint8_t bytes[kRows][16];
    unroll<kRows>(SPARSELOOM_UNROLLED(r) {
      if constexpr (kWeights == Weights::kept)
        __builtin_prefetch(positions[r.value] + group / 2 + positions_ahead, 0, 2);
      else
        E::prepare(positions[r.value] + group / 2, bytes[r.value]);
    });
    for (int s = 0; s < kSteps; ++s) {
      Vec w[kRows];
      unroll<kRows>(SPARSELOOM_UNROLLED(r) {
        const T* const stored = values[r.value] + 2 * group + s * (E::kElements / 2);
        if constexpr (kWeights == Weights::kept) {
          __builtin_prefetch(stored + values_ahead, 0, 2);
          w[r.value] = kept[r.value * kKept + s];
        } else {
          __builtin_prefetch(reinterpret_cast<const char*>(stored) + kAhead);
          w[r.value] = E::weights(stored, bytes[r.value] + s * (E::kElements / 8));
          if constexpr (kWeights == Weights::spread_and_kept) kept[r.value * kKept + s] = w[r.value];
        }
      });
      unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
        const Vec token = E::load(x[t.value] + from + s * E::kElements);
        unroll<kRows>(SPARSELOOM_UNROLLED(r) {
          acc[r.value][t.value] = E::step(acc[r.value][t.value], token, w[r.value]);
        });
      });
    }
  }
};

// Adds the products of the groups [first, last) of the rows [row, row + kRows) of W by the tokens [token,
// token + kTokens) to a tile with kExpandTokens per row. Rows and tokens past the last repeat it; their sums
// are not written to y. `first` is a multiple of kExpandGroups, and so is `last` unless it is the end.
template <class T, int kTokens, int kRows, Weights kWeights>
void expand_rows(const cpu::ExpandJob& job, std::int64_t row, std::int64_t token, std::int64_t first,
                 std::int64_t last, Vec* kept, float* tile) {
  constexpr std::int64_t kVectors = 4 * cpu::kExpandGroups / Expand<T>::kElements;
  const Semi24View& w = job.w;
  ExpandRows<T, kTokens, kRows, kWeights> rows;
  unroll<kRows>(SPARSELOOM_UNROLLED(r) {
    const std::int64_t at = std::min<std::int64_t>(row + r.value, w.rows - 1);
    rows.values[r.value] = static_cast<const T*>(job.args.values) + at * w.row_values();
    rows.positions[r.value] = w.positions + at * w.position_bytes();
    unroll<kTokens>(SPARSELOOM_UNROLLED(t) { rows.acc[r.value][t.value] = zero(); });
  });
  unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
    rows.x[t.value] = static_cast<const typename Expand<T>::X*>(job.x) +
                      std::min<std::int64_t>(token + t.value, job.args.m - 1) * job.x_stride;
  });
  // The next groups of these rows, or the first ones of the next rows.
  const std::int64_t groups = last < w.groups() ? last - first : -first, down = last < w.groups() ? 0 : kRows;
  rows.values_ahead = down * w.row_values() + 2 * groups;
  rows.positions_ahead = down * w.position_bytes() + groups / 2;
  const std::int64_t whole = last / cpu::kExpandGroups * cpu::kExpandGroups;
  for (std::int64_t group = first; group < whole; group += cpu::kExpandGroups, kept += kVectors)
    rows.chunk(group, 4 * group, kept);
  if (const std::int64_t rest = last - whole; rest > 0) {
    // A row's end is followed by the next row, or nothing: the rest is read from zero-padded copies. The
    // padding's positions are arbitrary.
    alignas(64) T values[kRows][2 * cpu::kExpandGroups] = {};
    std::uint8_t positions[kRows][16] = {};
    for (int r = 0; r < kRows; ++r) {
      std::memcpy(static_cast<void*>(values[r]), static_cast<const void*>(rows.values[r] + 2 * whole),
                  static_cast<std::size_t>(2 * rest) * sizeof(T));
      std::memcpy(positions[r], rows.positions[r] + whole / 2, static_cast<std::size_t>((rest + 1) / 2));
      rows.values[r] = values[r], rows.positions[r] = positions[r];
    }
    rows.chunk(0, 4 * whole, kept);
  }
  unroll<kRows>(SPARSELOOM_UNROLLED(r) {
    unroll<kTokens>(SPARSELOOM_UNROLLED(t) {
      tile[r.value * cpu::kExpandTokens + t.value] += sum(rows.acc[r.value][t.value]);
    });
  });
}

// Calls body(number), as a constant, with the least number of tokens that has a kernel and holds `tokens`.
template <class Body>
[[gnu::always_inline]] inline void of_tokens(std::int64_t tokens, const Body& body) {
  if (tokens <= 1)
    body(std::integral_constant<int, 1>{});
  else if (tokens <= 2)
    body(std::integral_constant<int, 2>{});
  else if (tokens <= 4)
    body(std::integral_constant<int, 4>{});
  else
    body(std::integral_constant<int, kPassTokens>{});
}

// The outputs [output, output + outputs) for tokens of a single pass. Longer rows are added up in ranges, so
// that no sum has too many steps (chain-inl.h).
template <class T>
void expand_at_once(const cpu::ExpandJob& job, std::int64_t output, std::int64_t outputs, float* tile) {
  of_tokens(job.args.m, [&](auto tokens) {
    constexpr int kTokens = tokens.value, kRows = kExpandRows<kTokens>;
    constexpr std::int64_t kGroups = kLongestChain * Expand<T>::kElements / 4;
    static_assert(kGroups % cpu::kExpandGroups == 0);
    for (std::int64_t o = 0; o < outputs; o += kRows)
      for (std::int64_t first = 0; first < job.w.groups(); first += kGroups)
        expand_rows<T, kTokens, kRows, Weights::spread>(job, output + o, 0, first,
                                                        std::min(first + kGroups, job.w.groups()), nullptr,
                                                        tile + o * cpu::kExpandTokens);
  });
}

// The same outputs for several passes.
template <class T>
void expand_in_passes(const cpu::ExpandJob& job, std::int64_t output, std::int64_t outputs, float* tile) {
  constexpr std::int64_t kGroups = std::int64_t{kKept} * Expand<T>::kElements / 4;
  alignas(64) Vec kept[kKeptRows * kKept];
  for (std::int64_t o = 0; o < outputs; o += kKeptRows)
    for (std::int64_t first = 0; first < job.w.groups(); first += kGroups) {
      const std::int64_t last = std::min(first + kGroups, job.w.groups());
      float* const sums = tile + o * cpu::kExpandTokens;
      expand_rows<T, kPassTokens, kKeptRows, Weights::spread_and_kept>(job, output + o, 0, first, last, kept,
                                                                       sums);
      for (std::int64_t token = kPassTokens; token < job.args.m; token += kPassTokens)
        of_tokens(job.args.m - token, [&](auto tokens) {
          expand_rows<T, tokens.value, kKeptRows, Weights::kept>(job, output + o, token, first, last, kept,
                                                                 sums + token);
        });
    }
}

template <class T>
void expand_units(const cpu::ExpandJob& job, std::int64_t begin, std::int64_t end) {
  const MatmulArgs& args = job.args;
  for (std::int64_t unit = begin; unit < end; ++unit) {
    const std::int64_t output = unit * cpu::kExpandOutputs,
                       outputs = std::min<std::int64_t>(cpu::kExpandOutputs, job.w.rows - output);
    alignas(64) float tile[cpu::kExpandOutputs * cpu::kExpandTokens] = {};
    if (args.m <= kPassTokens)
      expand_at_once<T>(job, output, outputs, tile);
    else
      expand_in_passes<T>(job, output, outputs, tile);
    cpu::write_tile({tile, cpu::kExpandTokens, args.m, outputs, args.dtype, args.activation,
                     args.bias ? static_cast<const T*>(args.bias) + output : nullptr,
                     static_cast<T*>(args.out) + output, args.out_stride, nullptr,
                     args.residual ? static_cast<const T*>(args.residual) + output : nullptr,
                     args.residual_stride});
  }
}

template <class T>
void pack_expand_x(const MatmulArgs& args, std::int64_t cols, void* x, std::int64_t x_stride) {
  using X = typename Expand<T>::X;
  for (std::int64_t t = 0; t < args.m; ++t) {
    const T* const from = static_cast<const T*>(args.a) + t * args.a_stride;
    X* const to = static_cast<X*>(x) + t * x_stride;
    std::int64_t i = 0;
    if constexpr (std::is_same_v<T, X>) {
      std::memcpy(static_cast<void*>(to), static_cast<const void*>(from),
                  static_cast<std::size_t>(cols) * sizeof(T));
      i = cols;
    } else {
      for (; i + kLanes <= cols; i += kLanes) store(to + i, widen(from + i));
      if (i < cols) store(to + i, widen_first(from + i, cols - i)), i += kLanes;
    }
    if (i < x_stride)
      std::memset(static_cast<void*>(to + i), 0, static_cast<std::size_t>(x_stride - i) * sizeof(X));
  }
}
