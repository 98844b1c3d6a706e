// Sums that are set aside in memory from time to time, since a long chain of additions in one register loses
// more precision than a blocked dense product. Included inside an instruction set's region, after vector.h.

// One register's chain of n additions loses some eps * n / 5 of a term, while n additions in chains of c lose
// eps * sqrt(c n) / 5. Chains of 1024 of a dW had 1.13 times the error allowed in an fp32 tile, and one of
// 3405 of a dX 1.02 times. If setting aside costs little beside a kernel's reads, no chain is longer than
// this.
constexpr std::int64_t kLongestChain = 512;

// sums (+)= acc, with rows of vectors `row` cells apart; acc is zero again afterwards.
template <int kRows, int kVectors>
[[gnu::always_inline]] inline void set_aside(Vec (&acc)[kRows][kVectors], float* sums, std::int64_t row,
                                             bool first) {
  unroll<kRows>(SPARSELOOM_UNROLLED(o) {
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
      float* at = sums + o.value * row + v.value * kLanes;
      store(at, first ? acc[o.value][v.value] : acc[o.value][v.value] + load(at));
      acc[o.value][v.value] = zero();
    });
  });
}

// Calls body(i) for all i in [begin, end), each of which adds `steps` times to all of acc. The inner loop
// does not test the chain's length: one test per block of 32 took a fifth of decode's time (measured).
template <int kRows, int kVectors, class Body>
[[gnu::always_inline]] inline void in_chains(std::int64_t begin, std::int64_t end, std::int64_t steps,
                                             Vec (&acc)[kRows][kVectors], const Body& body) {
  constexpr std::int64_t kRow = kVectors * kLanes;
  alignas(64) float sums[kRows * kRow];
  const std::int64_t most = std::max<std::int64_t>(1, kLongestChain / steps);
  bool begun = false;
  for (std::int64_t i = begin; i < end;) {
    for (const std::int64_t stop = std::min(end, i + most); i < stop; ++i) body(i);
    if (i == end) break;
    set_aside(acc, sums, kRow, !begun);
    begun = true;
  }
  if (!begun) return;
  unroll<kRows>(SPARSELOOM_UNROLLED(o) {
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
      acc[o.value][v.value] = load(sums + o.value * kRow + v.value * kLanes) + acc[o.value][v.value];
    });
  });
}
