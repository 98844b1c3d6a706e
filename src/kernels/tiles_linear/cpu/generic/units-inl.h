// A unit: what an entry of the table names, 64 x 64 of W. Included inside an instruction set's region, after
// its vector.h.

constexpr std::int64_t kSide = 64;  // of what an entry of the table names: a unit

// What the table says of a unit, from one of its rows on. Strides are from one row to the next.
template <class T>
struct Unit {
  bool half;
  const T* values;
  const std::uint8_t* positions;
  std::int64_t stride, position_stride;

  Unit(const cpu::PanelJob& job, std::int32_t entry, std::int64_t row)
      : half(TilesView::is_half(entry)), values(static_cast<const T*>(job.values)) {
    const TilesView& w = *job.tiles;
    const std::int64_t first = TilesView::first_row(entry) + row,
                       column = TilesView::column_part(entry) * kSide;
    stride = half ? w.side / 2 : w.side, position_stride = w.side / 8;
    values += half ? w.dense_values() + first * stride + column / 2 : first * stride + column;
    positions = half ? w.positions + first * position_stride + column / 8 : nullptr;
  }
};

// Fetches what a product needs of a row of the unit: `elements` of W from the column on.
template <int kLocality, class T>
[[gnu::always_inline]] inline void ask_row(const Unit<T>& unit, std::int64_t row, std::int64_t column,
                                           std::int64_t elements) {
  const std::int64_t halved = unit.half ? 1 : 0;
  const auto* const from =
      reinterpret_cast<const char*>(unit.values + row * unit.stride + (column >> halved));
  const std::int64_t bytes = (elements >> halved) * static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, kLocality);
  if (unit.half && row % 4 == 0)
    __builtin_prefetch(unit.positions + row * unit.position_stride + column / 8, 0, kLocality);
}

// The units that a strip of the same kernel reads after this one, to prefetch them into L2: `output`, the
// first one's within its block, and the list of its block.
struct After {
  std::int64_t output;
  const std::int32_t *entry = nullptr, *end = nullptr;

  // `next`: the outputs from this strip's first to the next one's.
  After(const cpu::PanelJob& job, const cpu::Strip& s, std::int64_t next) {
    output = s.output % kSide + next;
    const std::int64_t block = s.output / kSide + (output >= kSide ? 1 : 0);
    output %= kSide;
    if (s.leads && block < job.output_blocks)
      entry = job.slot + job.begin[block], end = job.slot + job.end[block];
  }
};
