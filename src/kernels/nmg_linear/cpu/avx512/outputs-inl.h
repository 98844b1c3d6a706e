// Forward output by output. Included inside an instruction set's region, after grouped-inl.h and
// outputs_unpack-inl.h.

// Adds the entries of a block to the sums of a chunk's outputs. kVectors: of the tile. `padded`: outputs, in
// whole groups.
template <class Inputs, int kVectors>
void add_entries(const std::uint16_t* row, const float* weight, std::int64_t padded, std::int64_t entries,
                 const float* x, float* sums, bool adds) {
  constexpr int kOutputs = cpu::kOutputsOfGroup;
  for (std::int64_t first = 0; first < padded; first += kOutputs, sums += kOutputs * kVectors * kLanes) {
    Vec acc[kOutputs][kVectors];
    unroll<kOutputs>(SPARSELOOM_UNROLLED(o) {
      unroll<kVectors>(SPARSELOOM_UNROLLED(v) { acc[o.value][v.value] = zero(); });
    });
    const std::uint16_t* from = row + first;
    const float* weights = weight + first;
    // Four numbers of rows by one load, an entry ahead: a Zen 5 waits for addresses that a load brings.
    std::uint64_t next;
    std::memcpy(&next, from, sizeof(next));
    for (std::int64_t i = 0; i < entries; ++i, weights += padded) {
      const std::uint64_t rows = next;
      std::memcpy(&next, from += padded, sizeof(next));
      unroll<kOutputs>(SPARSELOOM_UNROLLED(o) {
        const float* const inputs =
            x + static_cast<std::uint16_t>(rows >> (16 * o.value)) * std::uint64_t{kVectors * kLanes};
        const Vec by = splat(weights + o.value);
        unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
          Vec& sum = acc[o.value][v.value];
          sum = Inputs::step(sum, load(inputs + v.value * kLanes), by);
        });
      });
    }
    unroll<kOutputs>(SPARSELOOM_UNROLLED(o) {
      unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
        float* const to = sums + (o.value * kVectors + v.value) * kLanes;
        const Vec sum = acc[o.value][v.value];
        store(to, adds ? load(to) + sum : sum);
      });
    });
  }
}

// All strips of some tiles and chunks.
template <class T, class Inputs>
void grouped_outputs(const cpu::OutputJob& job, std::span<const cpu::TokenTile> tiles, cpu::Range chunks,
                     const cpu::OutputScratch& scratch) {
  constexpr std::int64_t kOutputs = cpu::kOutputsOfGroup;
  const NmgView& w = job.w;
  const std::int64_t chunk_rows = w.chunk_rows(), padded = core::round_up(chunk_rows, kOutputs);
  const std::int64_t each = job.blocks.entries, outputs = (chunks.end - chunks.begin) * padded;
  const std::int64_t wide = core::round_up(chunk_rows, kLanes);
  std::fill_n(scratch.inverse, wide * job.blocks.strips, std::uint16_t{0});
  // Loads what the next block will read of a chunk, in a pattern that the processor does not foresee.
  const auto ask = [&](std::int64_t chunk, std::int64_t begin) {
    const std::int64_t slots = (chunk * w.strips() + begin) * chunk_rows;
    const std::int64_t count = std::min(job.blocks.strips, w.strips() - begin) * chunk_rows;
    const auto lines = [](const auto* from, std::int64_t size) {
      for (std::int64_t i = 0; i < size; i += std::int64_t{64} / sizeof(*from))
        __builtin_prefetch(from + i, 0, 2);
    };
    lines(w.order + slots, count);
    lines(static_cast<const T*>(job.args.values) + slots * w.n, count * w.n);
  };
  std::int64_t block = 0;
  for (std::int64_t begin = 0; begin < w.strips(); begin += job.blocks.strips, ++block) {
    const std::int64_t strips = std::min(job.blocks.strips, w.strips() - begin);
    for (std::int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
      const std::int64_t slots = (chunk * w.strips() + begin) * chunk_rows;
      const std::int64_t at = (chunk - chunks.begin) * padded * each;
      invert_orders(w.order + slots, strips, chunk_rows, wide, scratch.inverse);
      Inputs::unpack(w, static_cast<const T*>(job.args.values) + slots * w.n, scratch.inverse, wide, strips,
                     padded, scratch.row + at, scratch.weight + at, scratch.values);
    }
    float *sums = scratch.sums, *whole = scratch.whole;
    for (const cpu::TokenTile& tile : tiles) {
      const std::int64_t tokens = tile.vectors * kLanes;
      if (block > 0 && block % cpu::kBlocksAtOnce == 0)
        set_aside_chunk(sums, whole, outputs * tokens, block == cpu::kBlocksAtOnce);
      const auto add = tile.vectors == 1   ? add_entries<Inputs, 1>
                       : tile.vectors == 2 ? add_entries<Inputs, 2>
                       : tile.vectors == 3 ? add_entries<Inputs, 3>
                                           : add_entries<Inputs, 4>;
      const float* const x =
          Inputs::rows(w, tile.x + begin * w.m * tokens, strips, tile.vectors, scratch.pairs);
      for (std::int64_t at = 0; at < outputs; at += padded) {
        if (&tile == tiles.data()) ask(chunks.begin + at / padded, begin + strips);
        add(scratch.row + at * each, scratch.weight + at * each, padded, Inputs::entries(w, strips), x,
            sums + at * tokens, block > 0);
      }
      sums += scratch.of_tile;
      if (whole != nullptr) whole += scratch.of_tile;
    }
  }
  float *sums = scratch.sums, *whole = scratch.whole;
  for (const cpu::TokenTile& tile : tiles) {
    const std::int64_t tokens = tile.vectors * kLanes;
    if (w.strips() == 0) std::fill_n(sums, outputs * tokens, 0.0f);
    for (std::int64_t i = 0; block > cpu::kBlocksAtOnce && i < outputs * tokens; i += kLanes)
      store(sums + i, load(whole + i) + load(sums + i));
    for (std::int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
      const std::int64_t first = chunk * chunk_rows;
      write_grouped<T>(tile, job.args.m, first, std::min(chunk_rows, w.rows - first),
                       static_cast<const T*>(job.args.bias), static_cast<T*>(job.args.out),
                       job.args.out_stride, sums + (chunk - chunks.begin) * padded * tokens, scratch.written);
    }
    sums += scratch.of_tile;
    if (whole != nullptr) whole += scratch.of_tile;
  }
}
