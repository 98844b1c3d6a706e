// Pictures of a pattern: characters for a terminal (ascii), SVG for a report (svg).
#include <algorithm>
#include <array>
#include <cmath>

#include "core/check.h"
#include "sparseloom/pattern.h"

namespace sparseloom {
namespace {

constexpr char kShades[] = " .:-=+*#%@";
constexpr int kFullShade = 9;

/// The grid divided into square cells of scale x scale blocks; each cell holds a shade from 0 (empty) to 9
/// (full).
struct Thumbnail {
  std::int64_t scale = 1, rows = 0, cols = 0;
  std::vector<std::uint8_t> shade;
};

Thumbnail shrink(const BlockPattern& pattern, std::int64_t max_side) {
  const std::int64_t longer = std::max(pattern.block_rows(), pattern.block_cols());
  Thumbnail result;
  result.scale = std::max<std::int64_t>(1, core::ceil_div(longer, max_side));
  result.rows = core::ceil_div(pattern.block_rows(), result.scale);
  result.cols = core::ceil_div(pattern.block_cols(), result.scale);
  result.shade.resize(static_cast<std::size_t>(result.rows * result.cols));
  std::vector<std::int64_t> present(static_cast<std::size_t>(result.cols));
  for (std::int64_t i = 0; i < result.rows; ++i) {
    const std::int64_t row_begin = i * result.scale,
                       row_end = std::min(pattern.block_rows(), row_begin + result.scale);
    std::fill(present.begin(), present.end(), 0);
    for (std::int64_t r = row_begin; r < row_end; ++r) {
      for (std::int64_t c = 0; c < pattern.block_cols(); ++c) present[c / result.scale] += pattern.test(r, c);
    }
    for (std::int64_t j = 0; j < result.cols; ++j) {
      const std::int64_t width = std::min(pattern.block_cols(), (j + 1) * result.scale) - j * result.scale;
      const std::int64_t cells = (row_end - row_begin) * width;
      // Round up below the middle and down above it, so that one block is never drawn as none and one gap
      // never as full.
      const std::int64_t level = present[j] * 2 < cells ? core::ceil_div(present[j] * kFullShade, cells)
                                                        : present[j] * kFullShade / cells;
      result.shade[i * result.cols + j] = static_cast<std::uint8_t>(level);
    }
  }
  return result;
}

}  // namespace

std::string BlockPattern::ascii(int max_side) const {
  if (max_side < 1)
    core::fail("pattern.ascii", "max_side >= 1", std::to_string(max_side), "pass the width in characters");
  const Thumbnail picture = shrink(*this, max_side);
  std::string text;
  text.reserve(static_cast<std::size_t>(picture.rows * (picture.cols + 1)));
  for (std::int64_t i = 0; i < picture.rows; ++i) {
    for (std::int64_t j = 0; j < picture.cols; ++j) {
      const int shade = picture.shade[i * picture.cols + j];
      text += picture.scale > 1 ? kShades[shade] : shade ? '#' : '.';
    }
    text += '\n';
  }
  return text;
}

std::string BlockPattern::svg(int pixels) const {
  if (pixels < 1)
    core::fail("pattern.svg", "pixels >= 1", std::to_string(pixels), "pass the picture's longer side");
  const Thumbnail picture = shrink(*this, pixels);
  // Write one path per shade and one rectangle per run of equal cells. A 128 x 128 grid at density 0.25 takes
  // about 50 kB, a fifth of one <rect> per block.
  std::array<std::string, kFullShade + 1> paths;
  for (std::int64_t i = 0; i < picture.rows; ++i) {
    for (std::int64_t j = 0, end = 0; j < picture.cols; j = end) {
      const std::uint8_t* row = &picture.shade[i * picture.cols];
      const std::uint8_t shade = row[j];
      for (end = j + 1; end < picture.cols && row[end] == shade;) ++end;
      if (shade) {
        paths[shade] += "M" + std::to_string(j) + " " + std::to_string(i) + "h" + std::to_string(end - j) +
                        "v1h-" + std::to_string(end - j) + "z";
      }
    }
  }
  // The frame has the matrix's proportions, and the cells stretch to fill it. It is at least 8 pixels wide,
  // so that a very long matrix can be seen.
  const double longer = static_cast<double>(std::max<std::int64_t>({rows_, cols_, 1}));
  const auto side = [&](std::int64_t size) {
    return std::to_string(
        std::max(std::min(pixels, 8), static_cast<int>(static_cast<double>(size) / longer * pixels)));
  };
  const PatternStats counts = stats();
  // Formatted by hand: the decimal point of printf follows the locale.
  const auto tenths = std::llround(1000 * counts.block_density);
  const std::string percent = std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " %";
  const std::string grid = std::to_string(picture.cols) + " " + std::to_string(picture.rows);
  std::string text = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + side(cols_) + "\" height=\"" +
                     side(rows_) + "\" viewBox=\"0 0 " + grid +
                     "\" preserveAspectRatio=\"none\" shape-rendering=\"crispEdges\" role=\"img\">\n";
  text += "<title>" + std::to_string(rows_) + " x " + std::to_string(cols_) + ", " +
          std::to_string(counts.blocks) + " blocks of " + to_string(block_) + ", " + percent + "</title>\n";
  text += "<rect width=\"100%\" height=\"100%\" fill=\"#e9edf2\"/>\n";
  for (int shade = 1; shade <= kFullShade; ++shade) {
    if (paths[shade].empty()) continue;
    // Opacities are ninths, written with two digits. The full shade needs none.
    const std::string opacity =
        shade == kFullShade ? "" : " fill-opacity=\"." + std::to_string(shade * 100 / kFullShade) + "\"";
    text += "<path fill=\"#1f5f8b\"" + opacity + " d=\"" + paths[shade] + "\"/>\n";
  }
  return text + "</svg>\n";
}

}  // namespace sparseloom
