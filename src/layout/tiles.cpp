// Weights of tiles as a layout: copies to dense rows, which copy bytes of any dtype, checks, and the table.
#include "sparseloom/tiles.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/check.h"
#include "layout/word.h"
#include "sparseloom/semi24.h"

namespace sparseloom {
namespace {

constexpr const char* kRemedy = "make the index with layouts.Tiles";

std::int64_t tiles_of(std::int64_t size, std::int64_t side) { return (size + side - 1) / side; }

void require_sizes(const char* op, const TilesView& w) {
  if (w.side != 64 && w.side != 128)
    core::fail(op, "a side of 64 or 128", std::to_string(w.side), "pass the side of the weight's tiles");
  if (!layout::countable(w.rows) || !layout::countable(w.cols))
    core::fail(op, "sizes from 0 to 2^31 - 1", core::shape(w.rows, w.cols), "pass the weight's shape");
  const std::int64_t tiles = tiles_of(w.rows, w.side) * tiles_of(w.cols, w.side);
  // An entry counts 64 rows of the tiles of a kind in 29 bits.
  constexpr std::int64_t kMostTiles = std::int64_t{1} << 28;
  if (w.dense < 0 || w.halves < 0 || w.dense > tiles || w.halves > tiles - w.dense || tiles > kMostTiles)
    core::fail(op, "0 to " + std::to_string(std::min(tiles, kMostTiles)) + " tiles",
               std::to_string(w.dense) + " dense and " + std::to_string(w.halves) + " of 2:4", kRemedy);
}

std::string place(std::int64_t row, std::int64_t unit) {
  return "of rows from " + std::to_string(row) + " and columns from " + std::to_string(unit * 64);
}

}  // namespace

void Tiles::unpack(const View& w, const void* values, const MatrixView& dense, std::int64_t begin,
                   std::int64_t end) {
  layout::unpack_rows<Tiles>(w, values, dense, begin, end);
}

void Tiles::validate(const char* op, const View& w) {
  require_sizes(op, w);
  if (!has_memory(w)) core::fail(op, "table and positions", "a null pointer", "pass the index of the weight");
  const std::int64_t parts = w.side / 64;
  std::vector<bool> seen[2];  // of dense and of 2:4 tiles, the 64 x 64 that entries name
  seen[0].resize(static_cast<std::size_t>(w.dense * parts * parts));
  seen[1].resize(static_cast<std::size_t>(w.halves * parts * parts));
  std::int64_t named = 0;
  for (std::int64_t row = 0; row < w.groups() * View::kGroupRows; row += 64)
    for (std::int64_t unit = 0; unit < w.units(); ++unit) {
      const std::int32_t entry = w.entry(row, unit);
      if (entry == -1) continue;
      std::vector<bool>& of_kind = seen[View::is_half(entry)];
      const std::int64_t at = View::first_row(entry) / 64 * parts + View::column_part(entry);
      if (entry < 0 || View::column_part(entry) >= parts || at >= static_cast<std::int64_t>(of_kind.size()) ||
          row >= tiles_of(w.rows, w.side) * w.side)
        core::fail(op, "entries of table inside the values", std::to_string(entry) + " " + place(row, unit),
                   kRemedy);
      if (of_kind[static_cast<std::size_t>(at)])
        core::fail(op, "each value at one place", std::to_string(entry) + " again, " + place(row, unit),
                   kRemedy);
      of_kind[static_cast<std::size_t>(at)] = true;
      ++named;
    }
  const std::int64_t all = (w.dense + w.halves) * parts * parts;
  if (named != all)
    core::fail(op, std::to_string(all) + " entries of table that name values", std::to_string(named),
               kRemedy);
  Semi24View halves;
  halves.rows = w.halves * w.side, halves.cols = w.side, halves.positions = w.positions;
  Semi24::validate(op, halves);
}

void Tiles::fill_table(const char* op, const View& w, const std::uint8_t* kinds, std::int32_t* table) {
  require_sizes(op, w);
  const std::int64_t parts = w.side / 64, across = tiles_of(w.cols, w.side);
  std::fill_n(table, w.groups() * w.units() * View::kGroup, -1);
  std::int64_t count[3] = {};
  for (std::int64_t tile = 0; tile < tiles_of(w.rows, w.side) * across; ++tile) {
    const unsigned kind = kinds[tile];
    if (kind > 2) core::fail(op, "kinds of 0, 1 and 2", std::to_string(kind), "0: absent, 1: 2:4, 2: dense");
    const std::int64_t number = count[kind]++;
    if (kind == 0) continue;
    for (std::int64_t part = 0; part < parts * parts; ++part) {
      const std::int64_t row = tile / across * parts + part / parts,
                         unit = tile % across * parts + part % parts;
      table[(row / View::kGroup * w.units() + unit) * View::kGroup + row % View::kGroup] =
          static_cast<std::int32_t>((number * parts + part / parts) << 2 | part % parts << 1 | (kind == 1));
    }
  }
  if (count[1] != w.halves || count[2] != w.dense)
    core::fail(op, std::to_string(w.dense) + " dense tiles and " + std::to_string(w.halves) + " of 2:4",
               std::to_string(count[2]) + " and " + std::to_string(count[1]), kRemedy);
}

}  // namespace sparseloom
