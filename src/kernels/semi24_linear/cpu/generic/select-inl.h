// The select kernels. Included inside an instruction set's region, after the struct template Select<T>:
//
//   kChoices                  vectors of x that a group may pick from
//   kPicks                    vectors that it picks: one for a pair of elements, or two
//   pack(x, out, stride)      the kChoices numbers of four bytes that one token has for the four columns of a
//                             group, `stride` apart
//   offsets<shift>(positions, out)
//                             the picks of 16 groups, as bytes from the group's first choice, each choice
//                             1 << shift bytes
//   Values                    16 groups of values, of which at(pick) fills a vector
//   step(acc, x, w)           acc + the products of a pick

// Bytes of x that one block over columns has at most; the sums of a unit lie beside it in L1.
constexpr std::int64_t kSelectBlock = 24 << 10;
// Rows of W by which the loop over rows asks ahead. A row's share of a block is some hundred bytes, behind
// which no hardware prefetcher goes on to the next row.
constexpr std::int64_t kRowsAhead = 8;

template <class T>
std::int64_t select_group_bytes(std::int64_t tokens) {
  const std::int64_t vectors = (tokens + kLanes - 1) / kLanes;
  return Select<T>::kChoices * vectors * kLanes * cpu::kCellBytes;
}

template <class T>
void pack_select_x(const cpu::SelectJob& job, std::int64_t begin, std::int64_t end) {
  constexpr int kChoices = Select<T>::kChoices;
  const std::int64_t bytes = select_group_bytes<T>(job.args.m), lanes = bytes / cpu::kCellBytes / kChoices;
  for (std::int64_t group = begin; group < end; ++group) {
    auto* const out = reinterpret_cast<std::uint32_t*>(job.x + group * bytes);
    std::memset(static_cast<void*>(out), 0, static_cast<std::size_t>(bytes));
    const std::int64_t count = std::min<std::int64_t>(4, job.w.cols - 4 * group);
    for (std::int64_t t = 0; t < job.args.m && count > 0; ++t) {
      T four[4] = {};
      std::memcpy(
          static_cast<void*>(four),
          static_cast<const void*>(static_cast<const T*>(job.args.a) + t * job.args.a_stride + 4 * group),
          static_cast<std::size_t>(count) * sizeof(T));
      Select<T>::pack(four, out + t, lanes);
    }
  }
}

// Adds the products of 16 groups: their values, positions and x.
template <class T, int kVectors>
[[gnu::always_inline]] inline void select_step(const T* values, const std::uint8_t* positions,
                                               const std::byte* x, Vec (&acc)[4][kVectors]) {
  using S = Select<T>;
  constexpr int kShift = std::countr_zero(static_cast<unsigned>(kVectors * kLanes * cpu::kCellBytes));
  constexpr std::int64_t kGroupBytes = std::int64_t{S::kChoices} << kShift;
  alignas(64) std::uint16_t at[cpu::kSelectGroups * S::kPicks];
  S::template offsets<kShift>(positions, at);
  const typename S::Values stored(values);
  unroll<cpu::kSelectGroups * S::kPicks>(SPARSELOOM_UNROLLED(i) {
    const Vec w = stored.at(i.value);
    const std::byte* const picked = x + i.value / S::kPicks * kGroupBytes + at[i.value];
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
      acc[i.value % 4][v.value] = S::step(
          acc[i.value % 4][v.value], load(reinterpret_cast<const cpu::Cell*>(picked) + v.value * kLanes), w);
    });
  });
}

// Adds the groups [begin, end) of a row to the sums of its tokens.
template <class T, int kVectors>
void select_row(const cpu::SelectJob& job, std::int64_t row, std::int64_t begin, std::int64_t end,
                float* sums) {
  const Semi24View& w = job.w;
  const T* const values = static_cast<const T*>(job.args.values) + row * w.row_values();
  const std::uint8_t* const positions = w.positions + row * w.position_bytes();
  const std::int64_t bytes = select_group_bytes<T>(job.args.m);
  const std::int64_t ahead = std::min(kRowsAhead, w.rows - 1 - row);
  for (std::int64_t i = 2 * begin; i < 2 * end; i += 64 / static_cast<std::int64_t>(sizeof(T)))
    __builtin_prefetch(values + ahead * w.row_values() + i);
  for (std::int64_t i = begin / 2; i < (end + 1) / 2; i += 64)
    __builtin_prefetch(positions + ahead * w.position_bytes() + i);
  Vec acc[4][kVectors];
  unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
    acc[0][v.value] = load(sums + v.value * kLanes);
    acc[1][v.value] = acc[2][v.value] = acc[3][v.value] = zero();
  });
  std::int64_t g = begin;
  for (; g + cpu::kSelectGroups <= end; g += cpu::kSelectGroups)
    select_step<T, kVectors>(values + 2 * g, positions + g / 2, job.x + g * bytes, acc);
  if (g < end) {  // the row's end, behind which lies the next row or nothing
    T rest[2 * cpu::kSelectGroups] = {};
    std::uint8_t halves[cpu::kSelectGroups / 2] = {};
    std::memcpy(static_cast<void*>(rest), static_cast<const void*>(values + 2 * g),
                static_cast<std::size_t>(2 * (end - g)) * sizeof(T));
    std::memcpy(halves, positions + g / 2, static_cast<std::size_t>((end - g + 1) / 2));
    select_step<T, kVectors>(rest, halves, job.x + g * bytes, acc);
  }
  unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
    store(sums + v.value * kLanes, (acc[0][v.value] + acc[1][v.value]) + (acc[2][v.value] + acc[3][v.value]));
  });
}

template <class T, int kVectors>
void select_units_of(const cpu::SelectJob& job, std::int64_t begin, std::int64_t end) {
  const MatmulArgs& args = job.args;
  const std::int64_t groups = job.w.groups(), block = kSelectBlock / select_group_bytes<T>(args.m) /
                                                      cpu::kSelectGroups * cpu::kSelectGroups;
  for (std::int64_t unit = begin; unit < end; ++unit) {
    const std::int64_t output = unit * cpu::kSelectOutputs,
                       outputs = std::min<std::int64_t>(cpu::kSelectOutputs, job.w.rows - output);
    alignas(64) float sums[cpu::kSelectOutputs * kVectors * kLanes] = {};
    for (std::int64_t g = 0; g < groups; g += block)
      for (std::int64_t o = 0; o < outputs; ++o)
        select_row<T, kVectors>(job, output + o, g, std::min(g + block, groups),
                                sums + o * kVectors * kLanes);
    cpu::write_tile({sums, kVectors * kLanes, args.m, outputs, args.dtype, args.activation,
                     args.bias ? static_cast<const T*>(args.bias) + output : nullptr,
                     static_cast<T*>(args.out) + output, args.out_stride, nullptr,
                     args.residual ? static_cast<const T*>(args.residual) + output : nullptr,
                     args.residual_stride});
  }
}

template <class T>
void select_units(const cpu::SelectJob& job, std::int64_t begin, std::int64_t end) {
  if (job.args.m <= kLanes) return select_units_of<T, 1>(job, begin, end);
  if constexpr (kLanes < cpu::kSelectTokens) select_units_of<T, cpu::kSelectTokens / kLanes>(job, begin, end);
}
