// The product of what is in vectors and what is splat. Included after expand-inl.h. Cells are 32 bits: one
// fp32 or two bf16, which Way::step multiplies with a cell of the same elements of the other operand.

// Whether a sum's additions are one chain, as where `steps` depends on how items were cut, or those of a call
// are added up first, which is more precise. `only` writes what there is no sum for yet.
enum class Chain { whole, of_call, only };

// sums [kOuter][cols], sums_stride apart, += (for Chain::only =) a of `steps` cells (kOuter rows of them,
// a_stride apart) b [steps][cols].
template <class Way, Chain kChain, int kOuter, int kVectors>
[[gnu::always_inline]] inline void add_cells(const float* b, std::int64_t steps, std::int64_t cols,
                                             const float* a, std::int64_t a_stride, float* sums,
                                             std::int64_t sums_stride) {
  std::int64_t c = 0;
  const auto add = [&](auto vectors) __attribute__((always_inline)) {
    constexpr int kHere = decltype(vectors)::value;
    Vec acc[kOuter][kHere];
    unroll<kOuter>(SPARSELOOM_UNROLLED(o) {
      unroll<kHere>(SPARSELOOM_UNROLLED(v) {
        if constexpr (kChain == Chain::whole)
          acc[o.value][v.value] = load(sums + o.value * sums_stride + c + v.value * kLanes);
        else
          acc[o.value][v.value] = zero();
      });
    });
    for (std::int64_t s = 0; s < steps; ++s) {
      Vec row[kHere];
      unroll<kHere>(SPARSELOOM_UNROLLED(v) { row[v.value] = load(b + s * cols + c + v.value * kLanes); });
      unroll<kOuter>(SPARSELOOM_UNROLLED(o) {
        const Vec factor = splat(a + o.value * a_stride + s);
        unroll<kHere>(SPARSELOOM_UNROLLED(v) {
          acc[o.value][v.value] = Way::step(acc[o.value][v.value], factor, row[v.value]);
        });
      });
    }
    unroll<kOuter>(SPARSELOOM_UNROLLED(o) {
      unroll<kHere>(SPARSELOOM_UNROLLED(v) {
        float* const at = sums + o.value * sums_stride + c + v.value * kLanes;
        store(at, kChain == Chain::of_call ? load(at) + acc[o.value][v.value] : acc[o.value][v.value]);
      });
    });
    c += kHere * kLanes;
  };
  while (c + kVectors * kLanes <= cols) add(std::integral_constant<int, kVectors>{});
  while (c < cols) add(std::integral_constant<int, 1>{});
}
