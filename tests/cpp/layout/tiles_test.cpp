// The layout of tiles: where the table says that values are, and what validate refuses.
#include "sparseloom/tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sparseloom/error.h"

namespace sparseloom {
namespace {

struct Weight {
  std::vector<std::uint8_t> kinds, positions;
  std::vector<std::int32_t> table;
  TilesView w;

  Weight(std::int64_t rows, std::int64_t cols, std::int64_t side, std::vector<std::uint8_t> of_tiles)
      : kinds(std::move(of_tiles)) {
    w.rows = rows, w.cols = cols, w.side = side;
    w.dense = std::count(kinds.begin(), kinds.end(), 2), w.halves = std::count(kinds.begin(), kinds.end(), 1);
    positions.assign(static_cast<std::size_t>(w.halves * side * (side / 8)), 0b1101'0100);
    table.resize(static_cast<std::size_t>(w.groups() * w.units() * TilesView::kGroup));
    Tiles::fill_table("test", w, kinds.data(), table.data());
    w.table = table.data(), w.positions = positions.data();
  }
};

std::string refused(const TilesView& w) {
  try {
    Tiles::validate("test", w);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Each slot of the values once, and padding behind the edge never.
TEST(TilesLayout, VisitsEachStoredElementOnce) {
  for (const std::int64_t side : {64, 128}) {
    const Weight weight(200, 2 * side + 40, side,
                        side == 64 ? std::vector<std::uint8_t>{1, 2, 0, 0, 1, 2, 2, 1, 1, 0, 2, 1}
                                   : std::vector<std::uint8_t>{1, 2, 0, 2, 0, 1});
    const TilesView& w = weight.w;
    EXPECT_EQ(refused(w), "");
    std::vector<int> visits(static_cast<std::size_t>(Tiles::stored(w)));
    for (std::int64_t row = 0; row < w.rows; ++row) {
      std::int64_t before = -1;
      Tiles::for_each_in_row(w, row, [&](std::int64_t col, std::int64_t slot) {
        EXPECT_GT(col, before);
        EXPECT_LT(col, w.cols);
        before = col;
        ++visits[static_cast<std::size_t>(slot)];
        const std::int64_t tile = row / side * ((w.cols + side - 1) / side) + col / side;
        EXPECT_EQ(slot < w.dense_values(), weight.kinds[static_cast<std::size_t>(tile)] == 2);
      });
    }
    EXPECT_LE(*std::max_element(visits.begin(), visits.end()), 1);
  }
}

TEST(TilesLayout, RefusesTablesThatDoNotFit) {
  const auto with = [](std::size_t at, std::int32_t entry) {
    Weight weight(128, 128, 64, {1, 2, 2, 0});
    weight.table[at] = entry;
    return refused(weight.w);
  };
  // Of a group of 256 rows: four entries for each 64 columns.
  EXPECT_NE(with(0, 1 << 2 | 1).find("inside the values"), std::string::npos);
  EXPECT_NE(with(0, -5).find("inside the values"), std::string::npos);
  EXPECT_NE(with(0, 2 | 1).find("inside the values"), std::string::npos);
  EXPECT_NE(with(2, 0).find("inside the values"), std::string::npos);  // rows behind W
  EXPECT_NE(with(1, 0).find("each value at one place"), std::string::npos);
  EXPECT_NE(with(0, -1).find("entries of table that name values"), std::string::npos);
  Weight weight(64, 64, 64, {1});
  weight.positions[3] = 0;  // two equal positions
  EXPECT_NE(refused(weight.w), "");
  weight.w.side = 32;
  EXPECT_NE(refused(weight.w).find("side of 64 or 128"), std::string::npos);
}

TEST(TilesLayout, RefusesOtherKindsAndCounts) {
  Weight weight(64, 128, 64, {1, 2});
  weight.kinds[0] = 3;
  EXPECT_THROW(Tiles::fill_table("test", weight.w, weight.kinds.data(), weight.table.data()), Error);
  weight.kinds[0] = 2;
  EXPECT_THROW(Tiles::fill_table("test", weight.w, weight.kinds.data(), weight.table.data()), Error);
}

}  // namespace
}  // namespace sparseloom
