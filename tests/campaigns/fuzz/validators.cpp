// libFuzzer over what comes from outside as lists: the validators of every layout's index, the lists of
// attention, and the table of measured rates. Whatever a validator lets through is then walked, transposed
// and unpacked, by the functions that rely on it, into memory of exactly its size.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bytes.h"
#include "layout/columns.h"
#include "ops/attention_lists.h"
#include "runtime/rate_table.h"
#include "sparseloom/bitmap.h"
#include "sparseloom/csr.h"
#include "sparseloom/error.h"
#include "sparseloom/layout.h"
#include "sparseloom/nm.h"
#include "sparseloom/nmg.h"
#include "sparseloom/semi24.h"
#include "sparseloom/tiles.h"

namespace sparseloom {
namespace {

/// Walks a valid index: every element lies inside the matrix, and has a slot of its own.
template <class L>
void walk(const typename L::View& w) {
  if (w.rows > 4096 || w.cols > 4096) return;
  std::vector<std::uint8_t> seen(static_cast<std::size_t>(L::stored(w)));
  std::vector<std::uint8_t> dense(static_cast<std::size_t>(w.rows * w.cols));
  for (std::int64_t r = 0; r < w.rows; ++r)
    L::for_each_in_row(w, r, [&](std::int64_t col, std::int64_t slot) {
      if (seen.at(static_cast<std::size_t>(slot))++) __builtin_trap();
      if (dense.at(static_cast<std::size_t>(r * w.cols + col))++) __builtin_trap();
    });
  std::vector<float> values(seen.size(), 1.0f), matrix(dense.size());
  L::unpack(w, values.data(), {matrix.data(), DType::f32, w.rows, w.cols, w.cols}, 0, w.rows);
  for (std::size_t i = 0; i < dense.size(); ++i)
    if (matrix[i] != static_cast<float>(dense[i])) __builtin_trap();
}

void blocks(Bytes& in) {
  constexpr std::int32_t sides[] = {8, 16, 32, 64, 128, 0, -8, 24};
  const BlockShape block{sides[in.take<std::uint8_t>() % 8], sides[in.take<std::uint8_t>() % 8]};
  const std::int64_t rows = in.size(200), cols = in.size(200);
  const auto crow = in.list<std::int32_t>(in.take<std::uint8_t>() % 32);
  const auto col = in.list<std::int32_t>(in.take<std::uint8_t>());
  validate_index("fuzz", rows, cols, block, crow, col);
  if (cols > 1 << 20) return;  // lists of billions of columns take seconds
  const IndexView index{rows, cols, block, static_cast<std::int64_t>(col.size()), crow.data(), col.data()};
  std::vector<std::int32_t> ccol(static_cast<std::size_t>(index.block_cols() + 1)), row(col.size()),
      slot(col.size());
  transpose_index(index, ccol.data(), row.data(), slot.data());
  layout::validate_columns("fuzz", index, {ccol.data(), row.data(), slot.data()});
  const auto theirs = in.list<std::int32_t>(static_cast<std::int64_t>(ccol.size() + 2 * col.size()));
  if (theirs.size() < ccol.size() + 2 * col.size()) return;
  const auto middle = theirs.begin() + static_cast<std::ptrdiff_t>(ccol.size());
  const std::vector<std::int32_t> their_ccol(theirs.begin(), middle),
      their_row(middle, middle + static_cast<std::ptrdiff_t>(col.size())),
      their_slot(middle + static_cast<std::ptrdiff_t>(col.size()), theirs.end());
  layout::validate_columns("fuzz", index, {their_ccol.data(), their_row.data(), their_slot.data()});
  if (their_ccol != ccol || their_row != row || their_slot != slot) __builtin_trap();  // there is one
}

void csr(Bytes& in) {
  const std::int64_t rows = in.size(30), cols = in.size(60);
  const auto col = in.list<std::int32_t>(in.take<std::uint8_t>());
  const auto crow = in.list<std::int32_t>(rows < 0 || rows > 1000 ? 1 : rows + 1);
  CsrView w;
  w.rows = rows, w.cols = cols, w.stored = static_cast<std::int64_t>(col.size());
  w.crow = static_cast<std::int64_t>(crow.size()) - 1 == rows ? crow.data() : nullptr, w.col = col.data();
  Csr::validate("fuzz", w);
  walk<Csr>(w);
}

void groups_of(Bytes& in) {
  NmView w;
  w.rows = in.size(20), w.cols = in.size(40), w.n = in.size(9), w.m = in.size(16);
  const bool small = w.rows >= 0 && w.rows < 64 && w.cols >= 0 && w.cols < 64 && w.n > 0 && w.n < 16;
  const auto positions = in.list<std::uint8_t>(small ? Nm::stored(w) : 0);
  const bool whole = small && static_cast<std::int64_t>(positions.size()) == Nm::stored(w);
  w.positions = whole ? positions.data() : nullptr;
  Nm::validate("fuzz", w);
  if (whole) walk<Nm>(w);
}

void grouped(Bytes& in) {
  const std::int64_t rows = in.size(20), cols = in.size(20), n = in.size(3), m = in.size(5), g = in.size(3);
  NmgView w = nmg_view("fuzz", rows, cols, n, m, g);
  const std::int64_t length = w.chunks() * w.strips() * w.chunk_rows();
  const auto order = in.list<std::int16_t>(length);
  if (static_cast<std::int64_t>(order.size()) != length) return;
  w.order = order.data();
  Nmg::validate("fuzz", w);
  walk<Nmg>(w);
}

void two_of_four(Bytes& in) {
  Semi24View w;
  w.rows = in.size(20), w.cols = in.size(60);
  const bool small = w.rows >= 0 && w.rows < 64 && w.cols >= 0 && w.cols < 64;
  const auto positions = in.list<std::uint8_t>(small ? w.rows * w.position_bytes() : 0);
  w.positions = positions.data();
  if (!small || static_cast<std::int64_t>(positions.size()) != w.rows * w.position_bytes()) return;
  Semi24::validate("fuzz", w);
  walk<Semi24>(w);
}

void bits(Bytes& in) {
  BitmapView w;
  w.rows = in.size(20), w.cols = in.size(60);
  const bool small = w.rows >= 0 && w.rows < 64 && w.cols >= 0 && w.cols < 64;
  const auto marks = in.list<std::uint8_t>(small ? w.rows * w.row_bytes() : 0);
  const auto crow = in.list<std::int32_t>(small ? w.rows + 1 : 0);
  if (!small || static_cast<std::int64_t>(marks.size()) != w.rows * w.row_bytes()) return;
  w.bits = marks.data(), w.crow = crow.data(), w.stored = in.size(200);
  Bitmap::validate("fuzz", w);
  walk<Bitmap>(w);
}

void tiles(Bytes& in) {
  TilesView w;
  w.rows = in.size(150), w.cols = in.size(150), w.side = in.take<std::uint8_t>() % 4 == 0 ? 128 : 64;
  w.dense = in.size(3), w.halves = in.size(3);
  const bool small = w.rows >= 0 && w.rows < 256 && w.cols >= 0 && w.cols < 256;
  const std::int64_t entries = small ? w.groups() * w.units() * TilesView::kGroup : 0;
  auto table = in.list<std::int32_t>(entries);
  if (!small || static_cast<std::int64_t>(table.size()) != entries || w.halves < 0 || w.halves > 9) return;
  for (std::int32_t& entry : table) entry = entry == 200 ? -1 : entry;  // an absent one costs a byte
  std::vector<std::uint8_t> positions(static_cast<std::size_t>(w.halves * w.side * (w.side / 8)), 0x44);
  for (int i = 0; i < 3 && !positions.empty(); ++i)
    if (in.take<std::uint8_t>() % 8 == 0)
      positions[in.take<std::uint16_t>() % positions.size()] = in.take<std::uint8_t>();
  w.table = table.data(), w.positions = positions.data();
  Tiles::validate("fuzz", w);
  walk<Tiles>(w);
}

void kinds(Bytes& in) {
  TilesView w;
  w.rows = in.size(200), w.cols = in.size(200), w.side = in.take<std::uint8_t>() % 2 == 0 ? 128 : 64;
  const bool small = w.rows >= 0 && w.rows < 256 && w.cols >= 0 && w.cols < 256;
  const std::int64_t count = small ? ((w.rows + w.side - 1) / w.side) * ((w.cols + w.side - 1) / w.side) : 0;
  const auto of_tiles = in.list<std::uint8_t>(count);
  if (!small || static_cast<std::int64_t>(of_tiles.size()) != count) return;
  w.dense = std::count(of_tiles.begin(), of_tiles.end(), 2);
  w.halves = std::count(of_tiles.begin(), of_tiles.end(), 1);
  std::vector<std::int32_t> table(static_cast<std::size_t>(w.groups() * w.units() * TilesView::kGroup));
  Tiles::fill_table("fuzz", w, of_tiles.data(), table.data());
  const std::vector<std::uint8_t> positions(static_cast<std::size_t>(w.halves * w.side * (w.side / 8)), 0x44);
  w.table = table.data(), w.positions = positions.data();
  try {
    Tiles::validate("fuzz", w);  // its own table
  } catch (const Error&) {
    __builtin_trap();
  }
  walk<Tiles>(w);
}

void lists(Bytes& in) {
  const std::int64_t batch = in.size(2), heads = in.size(3), blocks = in.size(12);
  block_attention::Lists of;
  of.lists = in.size(6), of.capacity = in.size(12);
  if (batch < 1 || batch > 2 || heads < 1 || heads > 3 || of.lists < 0 || of.lists > 6 || of.capacity < 0 ||
      of.capacity > 12)
    return;
  of.batch_stride = heads * of.lists, of.head_stride = of.lists;
  const auto counts = in.list<std::int32_t>(batch * heads * of.lists);
  const auto indices = in.list<std::int32_t>(batch * heads * of.lists * of.capacity);
  of.counts = counts.data(), of.indices = indices.data();
  ops::require_valid_lists("fuzz", "queries", of, batch, heads, blocks, in.take<std::uint8_t>() % 2);
  if (blocks < 0 || blocks > 64) return;
  std::vector<std::int32_t> key_counts(static_cast<std::size_t>(batch * heads * blocks)),
      key_indices(key_counts.size() * static_cast<std::size_t>(of.lists));
  ops::transpose_on_host(of, batch * heads, blocks, key_counts.data(), key_indices.data());
}

void rates(Bytes& in) {
  static const std::array<const char*, 2> names{"one", "two"};
  const std::array<runtime::NamedRate, 2> rates{{{"one", 1e9}, {"two", 2e9}}};
  const bool damaged = in.take<std::uint8_t>() % 2;
  std::string text = runtime::rate_table_text("header", "key", rates);
  if (damaged) {
    for (int i = 0; i < 3; ++i) text[in.take<std::uint16_t>() % text.size()] = in.take<char>();
  } else {
    text = in.rest();
  }
  const auto read = runtime::parse_rate_table(text, "header", "key", names);
  if (read && read->size() != names.size()) __builtin_trap();
}

}  // namespace
}  // namespace sparseloom

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sparseloom;
  constexpr void (*targets[])(Bytes&) = {blocks, csr,   groups_of, grouped, two_of_four,
                                         lists,  rates, bits,      tiles,   kinds};
  Bytes in(data, size);
  try {
    targets[in.take<std::uint8_t>() % std::size(targets)](in);
  } catch (const Error&) {
  }
  return 0;
}
