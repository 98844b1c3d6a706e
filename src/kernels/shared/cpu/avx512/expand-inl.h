// Values spread over the lanes of a vector by bits, with zeros between. Included inside an instruction set's
// region, after vector.h; halves and bytes need VBMI2.
//
// On a Zen 5, VEXPANDPS, VPEXPANDW and VPEXPANDB wait for what their destination held, also where zeros
// replace it: one begins five cycles after the last one into that register, five times as long as it takes
// (1.20 ns for .24 with the destination cleared first). So it is cleared, by an instruction that no compiler
// removes.

[[gnu::always_inline]] inline __m512i expanded_words(__mmask16 bits, __m512i values) {
  __m512i spread;
  asm("vpxord %0, %0, %0\n\tvpexpandd %1, %0%{%2%}%{z%}" : "=&v"(spread) : "v"(values), "Yk"(bits));
  return spread;
}
[[gnu::always_inline]] inline __m512i expanded_halves(__mmask32 bits, __m512i values) {
  __m512i spread;
  asm("vpxord %0, %0, %0\n\tvpexpandw %1, %0%{%2%}%{z%}" : "=&v"(spread) : "v"(values), "Yk"(bits));
  return spread;
}
[[gnu::always_inline]] inline __m512i expanded_bytes(__mmask64 bits, __m512i values) {
  __m512i spread;
  asm("vpxord %0, %0, %0\n\tvpexpandb %1, %0%{%2%}%{z%}" : "=&v"(spread) : "v"(values), "Yk"(bits));
  return spread;
}
// The other way: the values whose bits are set, with zeros behind them.
[[gnu::always_inline]] inline __m512i compressed_words(__mmask16 bits, __m512i values) {
  __m512i kept;
  asm("vpxord %0, %0, %0\n\tvpcompressd %1, %0%{%2%}%{z%}" : "=&v"(kept) : "v"(values), "Yk"(bits));
  return kept;
}
[[gnu::always_inline]] inline __m512i compressed_halves(__mmask32 bits, __m512i values) {
  __m512i kept;
  asm("vpxord %0, %0, %0\n\tvpcompressw %1, %0%{%2%}%{z%}" : "=&v"(kept) : "v"(values), "Yk"(bits));
  return kept;
}
