// Vectors of sixteen lanes beside the tiles. Included inside AMX's region, after avx512/vector.h.

// The first n of sixteen lanes, or none.
inline __mmask16 first_lanes(std::int64_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffff : n <= 0 ? 0 : (1u << n) - 1);
}

// x[i][j] -> x[j][i], of numbers of 32 bits.
inline void transpose(__m512i (&x)[kLanes]) {
  Vec rows[kLanes];
  unroll<kLanes>(SPARSELOOM_UNROLLED(i) { rows[i.value] = _mm512_castsi512_ps(x[i.value]); });
  transpose(rows);
  unroll<kLanes>(SPARSELOOM_UNROLLED(i) { x[i.value] = _mm512_castps_si512(rows[i.value]); });
}
