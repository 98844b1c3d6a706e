#include <gtest/gtest.h>

#include <cstdint>
#include <regex>
#include <string>
#include <vector>

#include "core/expect_error.h"
#include "pattern/pictures.h"
#include "sparseloom/pattern.h"

namespace sparseloom {
namespace {

using test::expect_error;
using test::from_picture;

TEST(Ascii, DrawsOneCharacterPerBlock) {
  EXPECT_EQ(from_picture({"#.#.", "....", ".###"}).ascii(), "#.#.\n....\n.###\n");
  EXPECT_EQ(BlockPattern(0, 8, {8, 8}).ascii(), "");
  EXPECT_EQ(pattern::full(64 * 8, 64 * 8, {8, 8}).ascii(),
            pattern::full(64 * 16, 64 * 32, {16, 32}).ascii(64));
}

TEST(Ascii, AveragesLargeGridsAndHidesNoBlock) {
  BlockPattern pattern(8 * 8, 8 * 8, {8, 8});
  EXPECT_EQ(pattern.ascii(2), "  \n  \n");
  for (int r = 0; r < 4; ++r) {
    for (int c = 0; c < 4; ++c) pattern.set(r, c);  // a full quarter
  }
  pattern.set(7, 0);                                                 // one of 16
  for (int r = 4; r < 8; ++r) pattern.set(r, 4), pattern.set(r, 6);  // half
  for (int c = 4; c < 8; ++c)
    pattern.set(0, c), pattern.set(1, c), pattern.set(2, c), pattern.set(3, c, c != 7);  // one missing
  EXPECT_EQ(pattern.ascii(2), "@%\n.=\n");
  EXPECT_EQ(pattern.ascii(4), "@@@@\n@@@*\n  ==\n- ==\n");
}

TEST(Ascii, KeepsTheAspectOfLongGrids) {
  EXPECT_EQ(pattern::full(8, 8 * 100, {8, 8}).ascii(10), "@@@@@@@@@@\n");
  EXPECT_EQ(pattern::full(8 * 3, 8, {8, 8}).ascii(2),
            "@\n@\n");  // the last cell has one block only, and it is full
  expect_error("pattern.ascii", {"max_side >= 1", "got 0"}, [] { pattern::full(8, 8, {8, 8}).ascii(0); });
}

/// The area that the paths of a picture cover, in cells.
std::int64_t painted(const std::string& svg) {
  const std::regex run("M\\d+ \\d+h(\\d+)v1h-(\\d+)z");
  std::int64_t area = 0;
  for (std::sregex_iterator it(svg.begin(), svg.end(), run), end; it != end; ++it) {
    EXPECT_EQ((*it)[1], (*it)[2]);
    area += std::stoll((*it)[1]);
  }
  return area;
}

TEST(Svg, IsSelfContainedAndSaysWhatItShows) {
  const std::string svg = from_picture({"#.#.", "....", ".###"}, {16, 32}).svg(256);
  EXPECT_EQ(
      svg.find("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"256\" height=\"96\" viewBox=\"0 0 4 3\""),
      0u)
      << svg;
  EXPECT_NE(svg.find("<title>48 x 128, 5 blocks of 16x32, 41.7 %</title>"), std::string::npos) << svg;
  EXPECT_NE(svg.find("d=\"M0 0h1v1h-1zM2 0h1v1h-1zM1 2h3v1h-3z\""), std::string::npos) << svg;
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  EXPECT_EQ(svg.find("href"), std::string::npos);
  EXPECT_EQ(svg.find("opacity"), std::string::npos);
}

TEST(Svg, PaintsEachBlockOnce) {
  for (const double density : {0.0, 0.2, 0.6, 1.0}) {
    const BlockPattern pattern = pattern::random(128 * 8, 100 * 8, {8, 8}, density, 4);
    EXPECT_EQ(painted(pattern.svg()), pattern.count());
  }
  EXPECT_LT(pattern::random(128 * 32, 128 * 32, {32, 32}, 0.25, 4).svg().size(), 60000u);
}

TEST(Svg, AveragesGridsLargerThanThePicture) {
  const std::string svg = pattern::random(1000 * 8, 500 * 8, {8, 8}, 0.25, 4).svg(100);
  EXPECT_NE(svg.find("width=\"50\" height=\"100\" viewBox=\"0 0 50 100\""), std::string::npos)
      << svg.substr(0, 200);
  EXPECT_NE(svg.find("fill-opacity=\".33\""), std::string::npos);
  EXPECT_EQ(painted(svg), 5000);  // ten blocks by ten at a quarter: no cell of them is empty
  EXPECT_LT(svg.size(), 100000u);
}

TEST(Svg, OfExtremeShapesIsDrawable) {
  EXPECT_NE(pattern::full(8, 80000, {8, 8}).svg().find("width=\"256\" height=\"8\""), std::string::npos);
  EXPECT_NE(BlockPattern(0, 0, {8, 8}).svg().find("0 x 0, 0 blocks of 8x8, 0.0 %"), std::string::npos);
  expect_error("pattern.svg", {"pixels >= 1", "got -5"}, [] { pattern::full(8, 8, {8, 8}).svg(-5); });
}

}  // namespace
}  // namespace sparseloom
