// dW's register tile: 8 outputs x up to 3 vectors of stored columns, over all tokens of a chunk. Included
// inside an instruction set's region, after panel-inl.h.

// How the lanes of a vector are filled: here by one piece of kLanes columns. (AVX-512 adds HalfPieces for
// blocks of 8 columns.)
struct WholePiece {
  static constexpr int kPieces = 1;
  [[gnu::always_inline]] static Vec load_at(const float* const* piece, std::int64_t step) {
    return load(piece[0] + step * kLanes);
  }
};
// A triple of columns comes from L3 for the first 8 outputs of its block row and from L2 for the others. So
// each 8 outputs prefetch a share of the next triple. Measured faster.
template <int kPieces>
[[gnu::always_inline]] inline void ask_for_next(const cpu::Outer& job, std::int64_t step) {
  const std::int64_t at = step / cpu::kAskSteps * job.next_lines * cpu::kLineCells;
  for (int i = 0; i < kPieces; ++i)
    for (int line = 0; line < job.next_lines; ++line)
      __builtin_prefetch(job.next[i] + at + line * cpu::kLineCells, 0, 2);
}

template <class Pieces, int kVectors>
void outer(const cpu::Outer& job, float* tile) {
  const std::int64_t steps = job.steps;
  const float* piece[kVectors * Pieces::kPieces];
  for (int i = 0; i < kVectors * Pieces::kPieces; ++i) piece[i] = job.pieces[i];
  for (int half = 0; half < cpu::kGroup; half += kTileOutputs) {
    Vec acc[kTileOutputs][kVectors];
    unroll<kTileOutputs>(SPARSELOOM_UNROLLED(o) {
      unroll<kVectors>(SPARSELOOM_UNROLLED(v) { acc[o.value][v.value] = zero(); });
    });
    const float* dy = job.dy + half;
    float* const sums = tile + half * cpu::kMaxVectors * kLanes;
    for (std::int64_t begin = 0; begin < steps || begin == 0; begin += kLongestChain) {
      const std::int64_t end = std::min(steps, begin + kLongestChain);
      for (std::int64_t t = begin; t < end;) {
        if (half == 0) ask_for_next<kVectors * Pieces::kPieces>(job, t);
        for (const std::int64_t stop = std::min(end, t + cpu::kAskSteps); t < stop; ++t, dy += cpu::kGroup) {
          Vec column[kVectors];
          unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
            column[v.value] = Pieces::load_at(piece + v.value * Pieces::kPieces, t);
          });
          unroll<kTileOutputs>(SPARSELOOM_UNROLLED(o) {
            const Vec weight = splat(dy + o.value);
            unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
              acc[o.value][v.value] = Product::step(acc[o.value][v.value], column[v.value], weight);
            });
          });
        }
      }
      // End the chain of additions.
      set_aside(acc, sums, cpu::kMaxVectors * kLanes, begin == 0);
    }
  }
}

template <class Pieces>
cpu::OuterFunction outer_of(int vectors) {
  return vectors == 3 ? outer<Pieces, 3> : vectors == 2 ? outer<Pieces, 2> : outer<Pieces, 1>;
}
