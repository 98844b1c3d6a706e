// Loops unrolled at compile time. Included inside an instruction set's region.

// Calls body(0), body(1), .. with constants. Arrays of vectors indexed this way stay in registers, while gcc
// 12 spills those of a loop that it unrolls itself.
template <int... I, class Body>
[[gnu::always_inline]] inline void unroll_(std::integer_sequence<int, I...>, Body&& body) {
  (body(std::integral_constant<int, I>{}), ...);
}
template <int kCount, class Body>
[[gnu::always_inline]] inline void unroll(Body&& body) {
  unroll_(std::make_integer_sequence<int, kCount>{}, body);
}
#define SPARSELOOM_UNROLLED(i) [&](auto i) __attribute__((always_inline))
