// The AMX tile instructions. Tiles are 8 registers of up to 16 rows x 64 bytes, whose sizes the thread
// configures. Included inside a region, after <cstdint>. tests/cpp/kernels/amx_emulated_tiles.h has the same
// functions in plain C++.
//
// They are written in assembly, since <amxtileintrin.h> is not safe: g++ 12's _tile_loadd does not declare
// that it reads memory, so the compiler may move stores into a buffer that only tiles read past the load.

// The memory format of LDTILECFG, palette 1.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64, "LDTILECFG reads 64 bytes");

inline void tiles_begin(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
// Also tells the system that it need no longer save this thread's 8 KiB of tiles.
inline void tiles_end() { asm volatile("tilerelease" : : : "memory"); }

template <int kTile>
[[gnu::always_inline]] inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
// Row r of the tile is at base + r * stride bytes.
template <int kTile>
[[gnu::always_inline]] inline void tile_load(const void* base, std::int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(base), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
[[gnu::always_inline]] inline void tile_store(void* base, std::int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(base), "r"(stride), "i"(kTile) : "memory");
}
// sums[m][n] += sum over pairs k: a[m][2 k] b[k][2 n] + a[m][2 k + 1] b[k][2 n + 1], bf16 products in fp32.
template <int kSums, int kA, int kB>
[[gnu::always_inline]] inline void tile_dot() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
}
// sums[m][n] += sum over quads k and i of 4: a[m][4 k + i] b[k][4 n + i], int8 products in int32.
template <int kSums, int kA, int kB>
[[gnu::always_inline]] inline void tile_dot_int8() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
}
