// The vocabulary of kernels/shared/cpu/amx/tiles.h in plain C++, so that the kernel's own code runs where
// there is no AMX. What the instruction would fault on, or leave undefined, ends the program with a sentence.
// Included inside a region.

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

struct Tile {
  int rows = 0, row_bytes = 0;  // 0: not configured
  std::array<std::array<std::uint8_t, 64>, 16> data;
};
// Of the calling thread, as the machine's.
inline thread_local std::array<Tile, 8> tiles;

[[noreturn]] inline void tile_fault(const char* what, int tile) {
  std::fprintf(stderr, "emulated AMX: %s, tile %d\n", what, tile);
  std::abort();
}
inline void tile_check(bool holds, const char* what, int tile) {
  if (!holds) tile_fault(what, tile);
}

inline void tiles_end() { tiles = {}; }
inline void tiles_begin(const TileConfig& config) {
  tile_check(config.palette == 1 && config.start_row == 0,
             "LDTILECFG of a palette other than 1 or in mid-load", -1);
  for (const std::uint8_t byte : config.reserved) tile_check(byte == 0, "LDTILECFG with reserved bits", -1);
  tiles = {};
  for (int t = 0; t < 16; ++t) {
    const int rows = config.rows[t], bytes = config.row_bytes[t];
    if (t >= 8) {
      tile_check(rows == 0 && bytes == 0, "LDTILECFG of a tile that palette 1 has not", t);
      continue;
    }
    tile_check(rows <= 16 && bytes <= 64 && (rows == 0) == (bytes == 0), "LDTILECFG of impossible sizes", t);
    tiles[static_cast<std::size_t>(t)].rows = rows;
    tiles[static_cast<std::size_t>(t)].row_bytes = bytes;
  }
}

// Nothing is left beyond a tile's rows and bytes: garbage there shows where a machine would hide it.
inline Tile& configured(int t) {
  tile_check(t >= 0 && t < 8, "no such tile", t);
  Tile& tile = tiles[static_cast<std::size_t>(t)];
  tile_check(tile.rows > 0, "a tile that is not configured (or tiles_begin was not called on this thread)",
             t);
  return tile;
}

template <int kTile>
void tile_zero() {
  configured(kTile).data = {};
}
template <int kTile>
void tile_load(const void* base, std::int64_t stride) {
  Tile& tile = configured(kTile);
  tile.data = {};
  for (int r = 0; r < tile.rows; ++r)
    std::memcpy(tile.data[static_cast<std::size_t>(r)].data(), static_cast<const char*>(base) + r * stride,
                static_cast<std::size_t>(tile.row_bytes));
}
template <int kTile>
void tile_store(void* base, std::int64_t stride) {
  const Tile& tile = configured(kTile);
  for (int r = 0; r < tile.rows; ++r)
    std::memcpy(static_cast<char*>(base) + r * stride, tile.data[static_cast<std::size_t>(r)].data(),
                static_cast<std::size_t>(tile.row_bytes));
}

// Denormals are zero, in and out, whatever MXCSR says.
inline float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }
inline float bf16_at(const Tile& tile, int row, int i) {
  std::uint16_t bits;
  std::memcpy(&bits, tile.data[static_cast<std::size_t>(row)].data() + 2 * i, 2);
  return flushed(core::to_f32(core::Bf16{bits}));
}

// Intel's order (ISA reference, TDPBF16PS): even and odd products of the whole depth in two fused sums from
// zero, their sum, and that to the old value; each rounded to nearest.
template <int kSums, int kA, int kB>
void tile_dot() {
  static_assert(kSums != kA && kSums != kB && kA != kB, "#UD: operands must be three tiles");
  Tile& sums = configured(kSums);
  const Tile &a = configured(kA), &b = configured(kB);
  const int pairs = a.row_bytes / 4, columns = sums.row_bytes / 4;
  tile_check(a.row_bytes % 4 == 0 && sums.row_bytes % 4 == 0 && b.row_bytes == sums.row_bytes,
             "TDPBF16PS columns differ", kSums);
  tile_check(a.rows == sums.rows, "TDPBF16PS rows of A and of the sums differ", kSums);
  tile_check(b.rows == pairs, "TDPBF16PS rows of B are not the pairs of A", kB);
  float right[16][32];
  for (int k = 0; k < pairs; ++k)
    for (int n = 0; n < 2 * columns; ++n) right[k][n] = bf16_at(b, k, n);
  for (int m = 0; m < sums.rows; ++m) {
    float two[32] = {};
    for (int k = 0; k < pairs; ++k) {
      const float left[2] = {bf16_at(a, m, 2 * k), bf16_at(a, m, 2 * k + 1)};
      for (int n = 0; n < 2 * columns; ++n) two[n] = flushed(std::fma(left[n % 2], right[k][n], two[n]));
    }
    for (int n = 0; n < columns; ++n) {
      float old;
      std::uint8_t* const at = sums.data[static_cast<std::size_t>(m)].data() + 4 * n;
      std::memcpy(&old, at, 4);
      const float sum = flushed(flushed(old) + flushed(two[2 * n] + two[2 * n + 1]));
      std::memcpy(at, &sum, 4);
    }
  }
}

// Products and sums of integers, modulo 2^32.
template <int kSums, int kA, int kB>
void tile_dot_int8() {
  static_assert(kSums != kA && kSums != kB && kA != kB, "#UD: operands must be three tiles");
  Tile& sums = configured(kSums);
  const Tile &a = configured(kA), &b = configured(kB);
  const int quads = a.row_bytes / 4, columns = sums.row_bytes / 4;
  tile_check(a.row_bytes % 4 == 0 && sums.row_bytes % 4 == 0 && b.row_bytes == sums.row_bytes,
             "TDPBSSD columns differ", kSums);
  tile_check(a.rows == sums.rows, "TDPBSSD rows of A and of the sums differ", kSums);
  tile_check(b.rows == quads, "TDPBSSD rows of B are not the quads of A", kB);
  for (int m = 0; m < sums.rows; ++m) {
    std::uint8_t* const row = sums.data[static_cast<std::size_t>(m)].data();
    for (int n = 0; n < columns; ++n) {
      std::uint32_t sum;
      std::memcpy(&sum, row + 4 * n, 4);
      for (int k = 0; k < quads; ++k)
        for (int i = 0; i < 4; ++i) {
          const int left = static_cast<std::int8_t>(
              a.data[static_cast<std::size_t>(m)][static_cast<std::size_t>(4 * k + i)]);
          const int right = static_cast<std::int8_t>(
              b.data[static_cast<std::size_t>(k)][static_cast<std::size_t>(4 * n + i)]);
          sum += static_cast<std::uint32_t>(left * right);
        }
      std::memcpy(row + 4 * n, &sum, 4);
    }
  }
}
