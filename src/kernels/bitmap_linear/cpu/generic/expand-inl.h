// What all expand kernels share. Included inside an instruction set's region, after its vectors.
//
// A Way says what a vector of columns is and how it is multiplied:
//   Value, X, V     types of a stored value, of an element of x as prepared, and of a vector
//   kColumns        columns of a vector
//   kOffset         x is offset by 128, and 128 times the sum of each row is subtracted: int8 (VPDPBUSD)
//   kFinite         x is finite by its type
//   kByTokens       forward of many tokens may have them in the lanes (tokens-inl.h)
//   none(), load(p), store(p, v), weights(p, bits), kept(x, bits), step(sum, x, w), add(sum, sum)
//   total(sum, offset)  the sum over a vector's lanes, less that of `offset`, the sums of the row's 128 w
//   totals(sums, offset)  those of a vector of sums

// What the Ways of floats have in common.
[[gnu::always_inline]] inline Vec load_cells(const void* p) { return load(static_cast<const cpu::Cell*>(p)); }
[[gnu::always_inline]] inline void store_cells(void* p, Vec v) { store(static_cast<cpu::Cell*>(p), v); }
struct Floats {
  using V = Vec;
  static constexpr bool kOffset = false, kFinite = false, kByTokens = kLanes == 16;
  [[gnu::always_inline]] static V none() { return zero(); }
  [[gnu::always_inline]] static V load(const void* p) { return load_cells(p); }
  [[gnu::always_inline]] static void store(void* p, V v) { store_cells(p, v); }
  [[gnu::always_inline]] static V add(V a, V b) { return a + b; }
  [[gnu::always_inline]] static float total(V sums, V) { return sum(sums); }
  [[gnu::always_inline]] static V totals(const V (&sums)[kLanes], V) { return sum_lanes(sums); }
};

constexpr int kPanelRows = 4, kPanelTokens = kRegisters >= 32 ? 6 : 3;
/// Of a row that is expanded into L1 at once.
constexpr std::int64_t kPanelBytes = 2048;

// The bits of vector i of a row, all of which lie in the row's bytes.
template <int kColumns>
[[gnu::always_inline]] inline auto bits_of(const std::uint8_t* row, std::int64_t i) {
  using Bits =
      std::conditional_t<kColumns == 64, std::uint64_t,
                         std::conditional_t<kColumns == 32, std::uint32_t,
                                            std::conditional_t<kColumns == 16, std::uint16_t, std::uint8_t>>>;
  Bits bits;
  std::memcpy(&bits, row + i * static_cast<std::int64_t>(sizeof bits), sizeof bits);
  if constexpr (kColumns == 64)
    return bits;
  else
    return static_cast<unsigned>(bits);
}
// Those of a vector that the row's end may cut, or that lies behind it; 0 behind it. Loops over whole vectors
// must not call it: its call, or the vector loop that compilers make of it, costs them their sums' registers.
template <int kColumns>
[[gnu::noinline]] inline auto last_bits_of(const std::uint8_t* row, std::int64_t i, std::int64_t bytes) {
  std::uint64_t bits = 0;
  const std::int64_t first = i * kColumns / 8;
  std::memcpy(&bits, row + first,
              static_cast<std::size_t>(std::clamp<std::int64_t>(bytes - first, 0, kColumns / 8)));
  return static_cast<decltype(bits_of<kColumns>(row, i))>(bits);
}

// Where a row's values begin.
template <class T>
[[gnu::always_inline]] inline const T* values_of(const cpu::BitmapJob& job, std::int64_t row) {
  const void* const base = row >= job.tail ? job.tail_values : job.args.values;
  return static_cast<const T*>(base) + job.w.crow[row];
}

template <int kColumns>
inline std::int64_t vectors_of(std::int64_t cols) {
  return (cols + kColumns - 1) / kColumns;
}

// Expands the columns of one row from vector `first` on into `to`, and advances p. With kOffset, adds the
// sums to *offset.
template <class Way>
[[gnu::always_inline]] inline void expand_row(const std::uint8_t* bits, std::int64_t bytes,
                                              const typename Way::Value*& p, std::int64_t first,
                                              std::int64_t vectors, typename Way::X* to,
                                              typename Way::V* offset) {
  const typename Way::Value* at = p;
  auto sums = Way::none();
  const auto expand = [&](std::int64_t i, auto here) __attribute__((always_inline)) {
    const auto w = Way::weights(at, here);
    if constexpr (Way::kOffset) sums = Way::step(sums, Way::offset(), w);
    Way::store(to + i * Way::kColumns, w);
    at += std::popcount(here);
  };
  const std::int64_t whole = std::min(vectors, bytes * 8 / Way::kColumns - first);
  for (std::int64_t i = 0; i < whole; ++i) expand(i, bits_of<Way::kColumns>(bits, first + i));
  if (whole < vectors) expand(whole, last_bits_of<Way::kColumns>(bits, first + whole, bytes));
  if constexpr (Way::kOffset) *offset = Way::add(*offset, sums);
  p = at;
}
