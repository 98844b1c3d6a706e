// n:m:g as a layout: its patterns, the meaning of a view, and its checks.
#include "layout/nmg.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "layout/word.h"

namespace sparseloom {
namespace {

constexpr std::int64_t kMostRows = std::int64_t{1} << 15;  // rows of a chunk: int16 indices

/// All n of m positions in revolving-door order: those without position m - 1, then those with it backwards.
std::vector<std::vector<std::uint8_t>> patterns_of(std::int64_t n, std::int64_t m) {
  if (n == 0) return {{}};
  std::vector<std::vector<std::uint8_t>> all;
  if (n < m) all = patterns_of(n, m - 1);
  std::vector<std::vector<std::uint8_t>> with = patterns_of(n - 1, m - 1);
  std::reverse(with.begin(), with.end());
  for (std::vector<std::uint8_t>& each : with) {
    each.push_back(static_cast<std::uint8_t>(m - 1));
    all.push_back(std::move(each));
  }
  return all;
}

/// The table of n:m. It is leaked, since views borrow it.
const std::uint8_t* places_of(std::int64_t n, std::int64_t m) {
  static std::mutex& mutex = *new std::mutex;
  static auto& tables = *new std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::uint8_t>>;
  std::lock_guard lock(mutex);
  std::vector<std::uint8_t>& table = tables[{n, m}];
  if (table.empty())
    for (const std::vector<std::uint8_t>& each : patterns_of(n, m))
      table.insert(table.end(), each.begin(), each.end());
  return table.data();
}

}  // namespace

void layout::nmg_require_made(const char* op, const NmgView& w) {
  const bool made = w.places != nullptr && w.n >= 1 && w.n <= w.m && w.m <= 256 && w.g >= 1;
  if (!made || w.patterns < 1 || w.patterns != nmg_patterns(w.n, w.m))
    core::fail(op, "a view with its table of patterns", "none, or that of others", "make it with nmg_view");
  if (!countable(w.rows) || !countable(w.cols) || w.g >= kMostRows || w.chunk_rows() >= kMostRows)
    core::fail(op, "sizes that nmg_view takes", core::shape(w.rows, w.cols) + ", g=" + std::to_string(w.g),
               "make it with nmg_view");
}

void layout::nmg_pack_strips(const ConstMatrixView& dense, const NmgView& w, void* values, std::int64_t begin,
                             std::int64_t end) {
  const std::int64_t chunk_rows = w.chunk_rows(), strips = w.strips();
  layout::with_word(dense.dtype, [&](auto word) {
    using W = decltype(word);
    W* const to = static_cast<W*>(values);
    for (std::int64_t group = begin * chunk_rows; group < end * chunk_rows; ++group) {
      const std::int64_t unit = group / chunk_rows, at = group % chunk_rows;
      const std::int64_t row = unit / strips * chunk_rows + w.order[group];
      for (std::int64_t i = 0; i < w.n; ++i) {
        const std::int64_t col = unit % strips * w.m + w.places[at / w.g * w.n + i];
        const bool inside = row < w.rows && col < w.cols;
        to[group * w.n + i] = inside ? static_cast<const W*>(dense.data)[row * dense.stride + col] : W{0};
      }
    }
  });
}

std::int64_t nmg_patterns(std::int64_t n, std::int64_t m) noexcept {
  std::int64_t count = 1;
  for (std::int64_t i = 1; i <= std::min(n, m - n); ++i) {
    count = count * (m - i + 1) / i;
    if (count >= kMostRows) return 0;
  }
  return count;
}

NmgView nmg_view(const char* op, std::int64_t rows, std::int64_t cols, std::int64_t n, std::int64_t m,
                 std::int64_t g, const std::int16_t* order) {
  if (!layout::countable(rows) || !layout::countable(cols))
    core::fail(op, "sizes from 0 to 2^31 - 1", core::shape(rows, cols), "pass the weight's shape");
  const auto name = [](std::int64_t a, std::int64_t b, std::int64_t c) {
    return "n=" + std::to_string(a) + ", m=" + std::to_string(b) + ", g=" + std::to_string(c);
  };
  if (n < 1 || n > m || m > 256 || g < 1)
    core::fail(op, "1 <= n <= m <= 256 and g >= 1", name(n, m, g), "pass n=1, m=8, g=16 to store an eighth");
  const std::int64_t patterns = nmg_patterns(n, m);
  if (patterns == 0 || g >= kMostRows || patterns * g >= kMostRows)
    core::fail(op, "fewer than 2^15 outputs in a chunk, which are C(m, n) g", name(n, m, g),
               "take a smaller g, n or m");
  return {rows, cols, n, m, g, order, patterns, places_of(n, m)};
}

namespace {

/// Writes the slots of strips [first, last) of a chunk to rows of `to`, `stride` elements apart, of which row
/// 0 is the chunk's first and column 0 the strips'. Only rows in [begin, end) and columns below cols are
/// written.
template <class W>
void scatter_strips(const NmgView& w, const W* values, std::int64_t chunk, std::int64_t first,
                    std::int64_t last, std::int64_t begin, std::int64_t end, std::int64_t cols, W* to,
                    std::int64_t stride) {
  for (std::int64_t strip = first; strip < last; ++strip) {
    std::int64_t group = (chunk * w.strips() + strip) * w.chunk_rows();
    const std::int64_t left = (strip - first) * w.m;
    for (const std::uint8_t* places = w.places; places < w.places + w.patterns * w.n; places += w.n)
      for (const std::int64_t stop = group + w.g; group < stop; ++group) {
        const std::int64_t row = w.order[group];
        if (row < begin || row >= end) continue;
        for (std::int64_t i = 0; i < w.n; ++i)
          if (left + places[i] < cols) to[row * stride + left + places[i]] = values[group * w.n + i];
      }
  }
}

}  // namespace

void Nmg::unpack(const View& w, const void* values, const MatrixView& dense, std::int64_t begin,
                 std::int64_t end) {
  // Two lines of each row of a chunk are put together in L1, since the lines of rows that lie at a multiple
  // of a page share a set of it: 4096 x 1024 bf16 at 1:4 took 10 ms by a direct scatter.
  constexpr std::int64_t kBytes = std::int64_t{32} << 10, kRowBytes = 128;
  const std::int64_t chunk_rows = w.chunk_rows();
  layout::with_word(dense.dtype, [&](auto word) {
    using W = decltype(word);
    const W* const from = static_cast<const W*>(values);
    W* const to = static_cast<W*>(dense.data);
    alignas(64) std::byte lines[kBytes];
    W* const buffer = reinterpret_cast<W*>(lines);
    const std::int64_t strips =
        std::max<std::int64_t>(1, kRowBytes / (w.m * static_cast<std::int64_t>(sizeof(W))));
    const std::int64_t width = strips * w.m;
    const bool fits = chunk_rows * width * static_cast<std::int64_t>(sizeof(W)) <= kBytes;
    for (std::int64_t row = begin; !fits && row < end; ++row)
      std::fill_n(to + row * dense.stride, w.cols, W{0});
    if (begin >= end) return;
    // By slots, not by rows, since each strip would have to be searched for a row.
    for (std::int64_t chunk = begin / chunk_rows; chunk <= (end - 1) / chunk_rows; ++chunk) {
      const std::int64_t top = chunk * chunk_rows;
      const std::int64_t least = std::max<std::int64_t>(begin - top, 0),
                         most = std::min(end - top, chunk_rows);
      if (!fits) {
        scatter_strips(w, from, chunk, 0, w.strips(), least, most, w.cols, to + top * dense.stride,
                       dense.stride);
        continue;
      }
      for (std::int64_t strip = 0; strip < w.strips(); strip += strips) {
        const std::int64_t left = strip * w.m, inside = std::min(width, w.cols - left);
        std::fill_n(buffer, chunk_rows * width, W{0});
        scatter_strips(w, from, chunk, strip, std::min(strip + strips, w.strips()), least, most, inside,
                       buffer, width);
        for (std::int64_t row = least; row < most; ++row)
          std::copy_n(buffer + row * width, inside, to + (top + row) * dense.stride + left);
      }
    }
  });
}

void Nmg::validate(const char* op, const View& w) {
  layout::nmg_require_made(op, w);
  if (w.order == nullptr && w.rows > 0 && w.cols > 0)
    core::fail(op, "an order", "a null pointer", "pass what nmg_order wrote");
  const std::int64_t chunk_rows = w.chunk_rows(), strips = w.strips();
  std::vector<std::int64_t> seen(static_cast<std::size_t>(chunk_rows), -1);
  for (std::int64_t part = 0; part < w.chunks() * strips; ++part)
    for (std::int64_t at = 0; at < chunk_rows; ++at) {
      const std::int16_t row = w.order[part * chunk_rows + at];
      const bool inside = row >= 0 && row < chunk_rows;
      if (!inside || seen[static_cast<std::size_t>(row)] == part)
        core::fail(op, "each of the " + std::to_string(chunk_rows) + " outputs of a chunk once",
                   std::to_string(row) + (inside ? " twice" : "") + " in chunk " +
                       std::to_string(part / strips) + ", strip " + std::to_string(part % strips),
                   "make the order with nmg_order");
      seen[static_cast<std::size_t>(row)] = part;
    }
}

}  // namespace sparseloom
