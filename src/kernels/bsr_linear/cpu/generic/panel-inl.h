// The micro-kernel and mainloop of forward and dx. Included inside an instruction set's region, after its
// vector.h, chain-inl.h, next_strip-inl.h, and a Product (product-inl.h) with
//   Vec Product::step(Vec acc, Vec x, Vec w)   acc += x * w per lane, over the k values of a cell
//   kDepthStep                                 the number of those k values

// acc[o][v] += x[v] * w[o] for `steps` steps. x advances by one step of the panel and w by w_step; the
// weights of adjacent outputs lie w_output apart.
template <int kVectors>
[[gnu::always_inline]] inline void multiply(Vec (&acc)[kTileOutputs][kVectors], const float*& x,
                                            const cpu::Cell*& w, std::int64_t w_output, std::int64_t w_step,
                                            std::int64_t steps) {
  for (std::int64_t k = 0; k < steps; ++k) {
    Vec token[kVectors];
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) { token[v.value] = load(x + v.value * kLanes); });
    unroll<kTileOutputs>(SPARSELOOM_UNROLLED(o) {
      const Vec weight = splat(w + o.value * w_output);
      unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
        acc[o.value][v.value] = Product::step(acc[o.value][v.value], token[v.value], weight);
      });
    });
    x += kVectors * kLanes;
    w += w_step;
  }
}

// The four structs below provide the cells of a strip's blocks. Strides count cells. source() and `lines`
// (cache lines) say what to prefetch of a block: nothing for a dx strip in the middle of cache lines that the
// previous strip has fetched.
struct DirectForward {
  // Rows of the block are outputs: a strip is 8 rows, which are contiguous.
  static constexpr bool kForward = true;
  std::int64_t block_cells, output_stride, step_stride = 1, offset, lines, line_stride = 64;
  const cpu::Cell* values;
  explicit DirectForward(const cpu::PanelJob& job, std::int64_t output)
      : block_cells(job.block_elements / kDepthStep),
        output_stride(job.block_cols / kDepthStep),
        offset(output % job.output_block * output_stride),
        lines(cpu::kGroup * output_stride / 16),
        values(static_cast<const cpu::Cell*>(job.values)) {}
  [[gnu::always_inline]] const cpu::Cell* source(std::int64_t slot) const {
    return values + slot * block_cells + offset;
  }
  [[gnu::always_inline]] const cpu::Cell* cells(std::int64_t slot) const { return source(slot); }
};
struct DirectDx {
  static constexpr bool kForward = false;  // columns of the block are outputs
  std::int64_t block_cells, output_stride = 1, step_stride, offset, lines, line_stride;
  const cpu::Cell* values;
  explicit DirectDx(const cpu::PanelJob& job, std::int64_t output)
      : block_cells(job.block_elements),
        step_stride(job.block_cols),
        offset(output % job.output_block),
        lines(offset % 16 == 0 ? job.depth_block : 0),
        line_stride(job.block_cols * 4),
        values(static_cast<const cpu::Cell*>(job.values)) {}
  [[gnu::always_inline]] const cpu::Cell* source(std::int64_t slot) const {
    return values + slot * block_cells + offset;
  }
  [[gnu::always_inline]] const cpu::Cell* cells(std::int64_t slot) const { return source(slot); }
};

// 16-bit values are widened strip by strip into a buffer in L1: 8 x depth conversions for 8 x depth x 3
// products of vectors.
template <class T>
struct WidenForward {
  static constexpr bool kForward = true;
  std::int64_t block_elements, output_stride, step_stride = 1, offset, count, lines, line_stride = 64;
  const T* values;
  alignas(64) float scratch[cpu::kGroup * cpu::kMaxBlock];
  explicit WidenForward(const cpu::PanelJob& job, std::int64_t output)
      : block_elements(job.block_elements),
        output_stride(job.block_cols),
        offset(output % job.output_block * job.block_cols),
        count(cpu::kGroup * job.block_cols),
        lines(count / 32),
        values(static_cast<const T*>(job.values)) {}
  [[gnu::always_inline]] const T* source(std::int64_t slot) const {
    return values + slot * block_elements + offset;
  }
  [[gnu::always_inline]] const cpu::Cell* cells(std::int64_t slot) {
    const T* from = source(slot);
    for (std::int64_t i = 0; i < count; i += kLanes) store(scratch + i, widen(from + i));
    return scratch;
  }
};
template <class T>
struct WidenDx {
  static constexpr bool kForward = false;
  std::int64_t block_elements, output_stride = 1, step_stride = cpu::kGroup, offset, columns, rows, lines,
                               line_stride;
  const T* values;
  alignas(64) float scratch[cpu::kGroup * cpu::kMaxBlock];
  explicit WidenDx(const cpu::PanelJob& job, std::int64_t output)
      : block_elements(job.block_elements),
        offset(output % job.output_block),
        columns(job.block_cols),
        rows(job.depth_block),
        lines(offset % 32 == 0 ? rows : 0),
        line_stride(job.block_cols * 2),
        values(static_cast<const T*>(job.values)) {}
  [[gnu::always_inline]] const T* source(std::int64_t slot) const {
    return values + slot * block_elements + offset;
  }
  [[gnu::always_inline]] const cpu::Cell* cells(std::int64_t slot) {
    const T* from = source(slot);
    for (std::int64_t i = 0; i < rows; ++i) narrow8(scratch + i * cpu::kGroup, widen8(from + i * columns));
    return scratch;
  }
};

// The panel rows of successive blocks are scattered, so the hardware's prefetchers begin each block with a
// few misses. Prefetching the next block's weights and its first panel rows one block ahead measured faster;
// prefetching more rows gained nothing.
template <int kVectors>
[[gnu::always_inline]] inline void prefetch_panel(const float* x) {
  constexpr int kPanelRows = 4;
  unroll<kPanelRows * kVectors * kLanes / 16>(
      SPARSELOOM_UNROLLED(line) { __builtin_prefetch(x + line.value * 16); });
}
// Prefetches `count` cache lines and returns the next one. kLocality 3 is L1, 2 is L2.
template <int kLocality>
[[gnu::always_inline]] inline const char* ask_lines(const char* line, std::int64_t count,
                                                    std::int64_t stride) {
  for (std::int64_t i = 0; i < count; ++i, line += stride) __builtin_prefetch(line, 0, kLocality);
  return line;
}

// Steps of depth (a run) that are multiplied between two groups of prefetches, each a share of a block's
// lines. A block of 128 would otherwise prefetch some 100 lines at once, and the misses of its own first
// steps would queue after them. Runs of 8 steps measured fastest for fp32. Dot products prefetch half the
// lines, and with runs of 8 they were slower in small blocks.
constexpr std::int64_t kRunSteps = kDepthStep == 1 ? 8 : 16;

[[gnu::always_inline]] inline std::int64_t runs_of(const cpu::PanelJob& job) {
  return std::max<std::int64_t>(1, job.depth_block / kDepthStep / kRunSteps);
}

// After this many steps the sums are added to the tile in memory and restarted: a blocked dense product has
// the same chains (chain-inl.h). It costs 24 additions in memory per 128 x 24 products.
constexpr std::int64_t kChainSteps = 128;

// The mainloop: tile <- the sums of one strip. The tile must be a local array of the caller: if it could
// alias the job, gcc would reload the job's members at each block, which measured slower in blocks of 8.
template <class Weights, int kVectors>
[[gnu::always_inline]] inline void sum_strip(const cpu::PanelJob& job, const cpu::Strip& s, float* tile) {
  constexpr std::int64_t kRow = kVectors * kLanes;  // cells of one panel step
  const std::int64_t block = s.output / job.output_block;
  const std::int64_t steps = job.depth_block / kDepthStep;
  const std::int64_t first = job.begin[block], last = job.end[block];
  Weights weights(job, s.output);
  // A panel of one vector is the call's only panel. Its weights come from memory, see stream.h.
  constexpr bool kStreams = kVectors == 1 && Weights::kForward;
  auto* next_row = weights.source(last) - weights.offset;
  if constexpr (kStreams)
    next_row = cpu::next_row(next_row, next_row - (weights.source(first) - weights.offset));
  const std::int64_t piece = cpu::kGroup * weights.output_stride;
  constexpr bool kAsks = kVectors > 1;  // prefetch the next strip, which helps wider panels
  const std::int64_t runs = runs_of(job);
  [[maybe_unused]] const NextStrip<Weights> next_strip(weights, job, s);
  // Weights are prefetched 32 steps ahead, up to the last block. A block of 32 takes 384 cycles by bf16 dot
  // products and 192 by int8's, and one of 16 takes 192 by FMA: about the latency of a weight from L3, so one
  // block ahead would be too late. Measured faster; the log has the figures.
  const std::int64_t ahead = std::max<std::int64_t>(1, 32 / steps);
  const std::int64_t run_lines = weights.lines / runs, run_steps = steps / runs,
                     next_run_lines = next_strip.lines_of_pass() / runs;
  // If stream.h prefetches the weights, that suffices for FMA, and prefetching them again into L1 measured
  // slower. bf16 dot products were slower without it.
  const bool pieces_to_l1 = !kStreams || kDepthStep == 2 || next_row == nullptr;
  for (int half = 0; half < cpu::kGroup; half += kTileOutputs) {
    Vec acc[kTileOutputs][kVectors];
    unroll<kTileOutputs>(SPARSELOOM_UNROLLED(o) {
      unroll<kVectors>(SPARSELOOM_UNROLLED(v) { acc[o.value][v.value] = zero(); });
    });
    float* const sums = tile + half * kRow;
    bool drained = false;
    std::int64_t chain = 0;
    for (std::int64_t i = first; i < last; ++i) {
      // End a long chain of additions.
      if (!Product::kExact && chain >= kChainSteps) {
        set_aside(acc, sums, kRow, !drained);
        drained = true;
        chain = 0;
      }
      chain += steps;
      const float* x = s.panel + job.depth_index[i] * steps * kRow;
      const cpu::Cell* w = weights.cells(job.slot ? job.slot[i] : i) + half * weights.output_stride;
      // Choose what to prefetch during this block: panel rows, weights of this strip, weights of the next
      // strip.
      const char *lines = nullptr, *next_lines = nullptr;
      if (i + 1 < last) {
        prefetch_panel<kVectors>(s.panel + job.depth_index[i + 1] * steps * kRow);
        if (half == 0 && pieces_to_l1)
          lines = reinterpret_cast<const char*>(
              weights.source(job.slot ? job.slot[std::min(i + ahead, last - 1)] : i + ahead));
      }
      if constexpr (kStreams)
        if (half == 0)
          cpu::stream_ahead(next_row, weights.offset * (last - first) + (i - first) * piece, piece);
      if constexpr (kAsks) next_lines = next_strip.first_line(i - first, half / kTileOutputs);
      // Multiply the block run by run, prefetching a share of the lines before each.
      for (std::int64_t run = runs;;) {
        if (lines != nullptr) lines = ask_lines<3>(lines, run_lines, weights.line_stride);
        if (next_lines != nullptr)
          next_lines = ask_lines<2>(next_lines, next_run_lines, next_strip.line_bytes());
        multiply<kVectors>(acc, x, w, weights.output_stride, weights.step_stride, run_steps);
        if (--run == 0) break;
      }
    }
    set_aside(acc, sums, kRow, !drained);
  }
}

// Passes partial sums from K tile to K tile: adds the sums of the previous K tiles, and stores the result for
// the next K tile or, in the last, in `tile`.
template <int kVectors>
[[gnu::always_inline]] inline void pass_sums(const cpu::Strip& s, float* left, float* tile) {
  for (std::int64_t i = 0; i < cpu::kGroup * kVectors * kLanes; i += kLanes) {
    const Vec sum = s.begins ? load(tile + i) : load(left + i) + load(tile + i);
    store((s.ends ? tile : left) + i, sum);
  }
}

/// The mainloop of `strips` over blocks whose cells Weights provides.
template <class Weights>
struct OfBlocks {
  template <int kVectors>
  [[gnu::always_inline]] static void sum(const cpu::PanelJob& job, const cpu::Strip& s, float* tile) {
    sum_strip<Weights, kVectors>(job, s, tile);
  }
};

// Mainloop::sum<kVectors>(job, strip, tile): tile <- the sums of one strip.
template <class Mainloop, int kVectors>
void strips(const cpu::PanelJob& job, const cpu::Strip& s) {
  constexpr std::int64_t kRow = kVectors * kLanes;
  alignas(64) float tile[cpu::kMostStrips * cpu::kGroup * kRow];
  float factors[cpu::kMostStrips * cpu::kGroup];
  const float* scale = nullptr;
  const std::int64_t pace = cpu::DeferredLines::pace(s.leaving, s.count);
  for (int i = 0; i < s.count; ++i) {
    // Send some of the deferred stores.
    if (pace > 0) s.leaving->send(pace);
    cpu::Strip one = s;
    one.output += i * cpu::kGroup;
    float* const sums = tile + i * cpu::kGroup * kRow;
    float* const left = s.sums ? s.sums + i * cpu::kGroup * kRow : nullptr;
    if (!s.begins)
      unroll<cpu::kGroup * kRow / 16>(
          SPARSELOOM_UNROLLED(line) { __builtin_prefetch(left + line.value * 16, 1); });
    Mainloop::template sum<kVectors>(job, one, sums);
    // Exchange partial sums with the other K tiles.
    if (left != nullptr) pass_sums<kVectors>(s, left, sums);
    if (s.ends && Product::finish(job, one, sums, kRow, factors + i * cpu::kGroup) != nullptr)
      scale = factors;
  }
  if (!s.ends) return;
  // Epilogue.
  const auto size = static_cast<std::int64_t>(size_of(job.out_dtype));
  const std::int64_t outputs = std::min<std::int64_t>(s.count * cpu::kGroup, job.outputs - s.output);
  const auto rows = cpu::rows_of(job, s.leaving, s.token, s.tokens, s.output, outputs);
  cpu::write_tile({tile, kRow, s.tokens, outputs, job.out_dtype, job.activation,
                   job.bias ? static_cast<const char*>(job.bias) + s.output * size : nullptr, rows.out,
                   rows.stride / size, scale,
                   job.residual ? static_cast<const char*>(job.residual) +
                                      (s.token * job.residual_stride + s.output) * size
                                : nullptr,
                   job.residual_stride});
}
