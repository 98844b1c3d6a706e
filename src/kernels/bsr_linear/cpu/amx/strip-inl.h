// Strips on AMX tiles: forward and, for bf16, dx. Included inside a region, after the tile instructions
// (tiles.h), avx512/vector.h and the following:
//
//   Element, kPerCell                   the element type of A, and how many of them one cell holds
//   product<kSums, kA, kB>()            the multiply instruction
//   write_sums<kVectors>(job, s, sums)  the epilogue: writes sums [output][vector][lane] to the output

constexpr int kFirstA = 4;  // tiles 0 .. 3 hold sums

// Sums stay in their tiles for the whole depth, while the panel kernels drain theirs: one instruction adds
// its 8 to 32 products among themselves first, so the chain of additions is at most an eighth of the plain
// product's, and the result is rounded to bf16 anyway.

// The panel rows of successive blocks are scattered, so those of the next block are prefetched one block
// ahead. One tile's rows suffice: they come from L2, whose latency the queued tile loads hide and whose
// bandwidth they need. Weights come from L3 when the first panel reads them, and are prefetched some 8 KiB
// ahead: 4 KiB of operands (half of them weights) take 64 cycles, and the latency is 250.
constexpr std::int64_t kWeightsAhead = 8 << 10, kWeightLines = 64, kPanelLines = 16;

[[gnu::always_inline]] inline void prefetch_lines(const void* base, std::int64_t lines) {
  for (std::int64_t i = 0; i < lines; ++i) __builtin_prefetch(static_cast<const char*>(base) + i * 64);
}

// One step of depth: kUp tiles of weights, 16 rows apart, against kVectors tiles of tokens side by side.
template <int kUp, int kVectors>
[[gnu::always_inline]] inline void multiply(const Element* w, std::int64_t w_row, const float* x) {
  constexpr int kFirstB = kFirstA + kUp, kBs = 8 - kFirstB;
  const std::int64_t w_stride = w_row * static_cast<std::int64_t>(sizeof(Element));
  unroll<kUp>(
      SPARSELOOM_UNROLLED(u) { tile_load<kFirstA + u.value>(w + u.value * kLanes * w_row, w_stride); });
  unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
    constexpr int kB = kFirstB + v.value % kBs;
    tile_load<kB>(x + v.value * kLanes, kVectors * kLanes * 4);
    unroll<kUp>(SPARSELOOM_UNROLLED(u) { product<u.value * kVectors + v.value, kFirstA + u.value, kB>(); });
  });
}

// The mainloop: kOutputs rows of a block row, from `output` on, through all its blocks into `sums`
// [kOutputs][vector][lane].
template <int kOutputs, int kVectors>
[[gnu::always_inline]] inline void sum_blocks(const cpu::PanelJob& job, const cpu::TileStrip& s,
                                              std::int64_t output, std::int64_t pace, float* sums) {
  constexpr int kUp = kOutputs == 32 ? 2 : 1, kSide = kOutputs / kUp;
  constexpr std::int64_t kRow = kVectors * kLanes;
  const std::int64_t depth = job.depth_block, cells = depth / kPerCell,
                     bytes = depth * static_cast<std::int64_t>(sizeof(Element));
  const std::int64_t step = std::min<std::int64_t>(depth, cpu::kTileSide * kPerCell);
  const std::int64_t block = output / job.output_block;
  const std::int64_t first = job.begin[block], last = job.end[block];
  // The first element of the strip inside a block. The blocks lie in memory in list order. It is an offset
  // and not a pointer, because `values` may be null if there are no blocks.
  const std::int64_t offset = output % job.output_block * depth;
  const auto weights = [&](std::int64_t i) {
    return static_cast<const Element*>(job.values) + i * job.block_elements + offset;
  };
  const std::int64_t ahead = std::max<std::int64_t>(1, kWeightsAhead / (kOutputs * bytes));
  unroll<kUp * kVectors>(SPARSELOOM_UNROLLED(i) { tile_zero<i.value>(); });
  for (std::int64_t i = first; i < last; ++i) {
    // Prefetch panel rows and weights.
    if (i + 1 < last)
      prefetch_lines(s.panel + job.depth_index[i + 1] * cells * kRow,
                     std::min(kPanelLines, cells * kVectors));
    if (s.fetch && i + ahead < last)
      prefetch_lines(weights(i + ahead), std::min(kWeightLines, kOutputs * bytes / 64));
    // Send some of the deferred stores.
    if (pace > 0) s.leaving->send(pace);
    // Multiply the block.
    const float* x = s.panel + job.depth_index[i] * cells * kRow;
    const Element* w = weights(i);
    for (std::int64_t k = 0; k < depth; k += step)
      multiply<kUp, kVectors>(w + k, depth, x + k / kPerCell * kRow);
  }
  unroll<kUp>(SPARSELOOM_UNROLLED(u) {
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
      tile_store<u.value * kVectors + v.value>(sums + u.value * kSide * kRow + v.value * kLanes, kRow * 4);
    });
  });
}

// Block rows of fewer than 32 rows are written together, a cache line per token: tokens are a page or more
// apart, and each partial store of a line would miss L1 anew.
template <int kOutputs, int kVectors>
void strip(const cpu::PanelJob& job, const cpu::TileStrip& s) {
  alignas(64) float
      sums[cpu::kTileOutputs * kVectors * kLanes];  // rows beyond s.outputs are not set, and masked later
  const std::int64_t list = s.output / job.output_block;
  const std::int64_t pace =
      cpu::DeferredLines::pace(s.leaving, s.outputs / kOutputs * (job.end[list] - job.begin[list]));
  for (std::int64_t o = 0; o < s.outputs; o += kOutputs)
    sum_blocks<kOutputs, kVectors>(job, s, s.output + o, pace, sums + o * kVectors * kLanes);
  write_sums<kVectors>(job, s, sums);
}

template <int kOutputs>
cpu::TileStripFunction strip_of(int vectors) {
  if constexpr (kOutputs == 32)
    return vectors == 2 ? strip<32, 2> : strip<32, 1>;
  else
    return vectors == 4   ? strip<kOutputs, 4>
           : vectors == 3 ? strip<kOutputs, 3>
           : vectors == 2 ? strip<kOutputs, 2>
                          : strip<kOutputs, 1>;
}
cpu::TileStripFunction choose_strip(int outputs, int vectors) {
  return outputs == 32 ? strip_of<32>(vectors) : outputs == 16 ? strip_of<16>(vectors) : strip_of<8>(vectors);
}
