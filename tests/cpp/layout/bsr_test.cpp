// pack and unpack: exact copies, for every block shape, dtype, edge and stride.
#include "layout/bsr.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/expect_error.h"
#include "core/rng.h"
#include "pattern/pictures.h"
#include "sparseloom/layout.h"

namespace sparseloom {
namespace {

using test::expect_error;

/// A dense matrix of random bytes (NaN, Inf, -0.0 and denormals among them) with a gap between its rows.
struct Bytes {
  Bytes(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t gap, std::uint64_t seed)
      : dtype(dtype),
        rows(rows),
        cols(cols),
        stride(cols + gap),
        data(static_cast<std::size_t>(rows * stride) * size_of(dtype)) {
    core::Rng rng(seed);
    for (std::uint8_t& byte : data) byte = static_cast<std::uint8_t>(rng.next() >> 56);
  }
  MatrixView view() { return {data.data(), dtype, rows, cols, stride}; }
  std::vector<std::uint8_t> element(std::int64_t r, std::int64_t c) const {
    const auto first = data.begin() + (r * stride + c) * static_cast<std::int64_t>(size_of(dtype));
    return {first, first + static_cast<std::int64_t>(size_of(dtype))};
  }

  DType dtype;
  std::int64_t rows, cols, stride;
  std::vector<std::uint8_t> data;
};

void expect_exact(const BlockPattern& pattern, DType dtype, std::int64_t gap) {
  SCOPED_TRACE(testing::Message() << pattern.rows() << " x " << pattern.cols() << " in "
                                  << to_string(pattern.block()) << ", " << name_of(dtype) << ", gap " << gap);
  const BlockShape block = pattern.block();
  const BlockIndex index(pattern);
  const IndexView view = index.view();
  Bytes dense(dtype, pattern.rows(), pattern.cols(), gap, 1),
      back(dtype, pattern.rows(), pattern.cols(), gap, 2);
  const Bytes before = back;
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  std::vector<std::uint8_t> values(static_cast<std::size_t>(view.blocks * view.block_elements() * size),
                                   0xcd);
  pack(dense.view(), view, values.data());

  // Each value is the element it stands for, each padding zero.
  const std::vector<std::uint8_t> zero(static_cast<std::size_t>(size), 0);
  for (std::int64_t r = 0, i = 0; r < view.block_rows(); ++r) {
    for (; i < view.crow[r + 1]; ++i) {
      for (std::int64_t e = 0; e < view.block_elements(); ++e) {
        const std::int64_t y = r * block.rows + e / block.cols,
                           x = view.col[i] * std::int64_t{block.cols} + e % block.cols;
        const auto first = values.begin() + (i * view.block_elements() + e) * size;
        const bool inside = y < pattern.rows() && x < pattern.cols();
        ASSERT_EQ(std::vector<std::uint8_t>(first, first + size), inside ? dense.element(y, x) : zero);
      }
    }
  }
  // unpack(pack(x)) is mask * x without the product, and does not write between the rows.
  unpack(view, values.data(), back.view());
  for (std::int64_t y = 0; y < pattern.rows(); ++y) {
    for (std::int64_t x = 0; x < back.stride; ++x) {
      const bool inside = x < pattern.cols();
      const bool present = inside && pattern.test(y / block.rows, x / block.cols);
      ASSERT_EQ(back.element(y, x), !inside   ? before.element(y, x)
                                    : present ? dense.element(y, x)
                                              : zero)
          << y << ", " << x;
    }
  }
  // A second round trip changes nothing.
  std::vector<std::uint8_t> again(values.size(), 0xab);
  pack(back.view(), view, again.data());
  EXPECT_EQ(again, values);
}

TEST(Pack, IsExactForEveryBlockShape) {
  for (const std::int32_t rows : {8, 16, 32, 64, 128}) {
    for (const std::int32_t cols : {8, 16, 32, 64, 128}) {
      const BlockShape block = {rows, cols};
      expect_exact(pattern::random(2 * rows + 3, 3 * cols + 1, block, 0.5, 7), DType::f32, 0);
      expect_exact(pattern::random(2 * rows, 2 * cols, block, 0.5, 8), DType::bf16, 5);
    }
  }
}

TEST(Pack, IsExactForEveryDtypeEdgeAndFill) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    for (const auto& [rows, cols] : std::initializer_list<std::pair<int, int>>{
             {64, 96}, {65, 97}, {63, 95}, {1, 1}, {1, 200}, {200, 1}, {16, 32}, {0, 64}, {64, 0}, {0, 0}}) {
      for (const double density : {0.0, 0.3, 1.0}) {
        for (const std::int64_t gap : {0, 7})
          expect_exact(pattern::random(rows, cols, {16, 32}, density, 9), dtype, gap);
      }
    }
  }
  expect_exact(test::from_picture({"...", "##.", "...", "..#"}, {32, 16}), DType::f32,
               3);  // empty rows and none at the start
}

TEST(Pack, CopiesSpecialValuesAndUnpackMultipliesNothing) {
  std::vector<float> dense(16 * 16, std::numeric_limits<float>::quiet_NaN());
  dense[0] = -0.0f;
  dense[1] = std::numeric_limits<float>::infinity();
  const ConstMatrixView view{dense.data(), DType::f32, 16, 16, 16};
  const BsrMatrix matrix = BsrMatrix::pack(view, test::from_picture({"#.", ".."}));
  std::vector<float> back(16 * 16, 5);
  matrix.unpack({back.data(), DType::f32, 16, 16, 16});
  EXPECT_TRUE(back[0] == 0 && std::signbit(back[0]));
  EXPECT_EQ(back[1], dense[1]);
  EXPECT_TRUE(std::isnan(back[2]));
  EXPECT_EQ(std::count(back.begin(), back.end(), 0.0f),
            16 * 16 - 63);  // -0.0 and the absent blocks; no NaN spread by 0 * NaN
  EXPECT_FALSE(std::signbit(back[15]));
}

TEST(UnpackRows, InRangesThatCutBlocksTooGivesTheWhole) {
  const BlockPattern pattern = pattern::random(75, 90, {16, 8}, 0.4, 3);
  const BlockIndex index(pattern);
  Bytes dense(DType::f32, 75, 90, 2, 1), whole(DType::f32, 75, 90, 2, 2), pieces(DType::f32, 75, 90, 2, 2);
  const BsrMatrix matrix = BsrMatrix::pack(dense.view(), pattern);
  matrix.unpack(whole.view());
  for (const auto& [begin, end] : {std::pair{48, 75}, {0, 5}, {5, 5}, {5, 7}, {7, 41}, {41, 48}}) {
    layout::Bsr::unpack(index.view(), matrix.values(), pieces.view(), begin, end);
  }
  EXPECT_EQ(pieces.data, whole.data);
}

TEST(BsrMatrix, StartsAtZeroAndRemembersItsDtype) {
  BsrMatrix matrix(BlockIndex(pattern::full(20, 20, {8, 16})), DType::f16);
  EXPECT_EQ(matrix.dtype(), DType::f16);
  const auto* values = static_cast<const std::uint16_t*>(static_cast<const BsrMatrix&>(matrix).values());
  EXPECT_EQ(std::count(values, values + 6 * 128, 0), 6 * 128);
  const std::uint16_t one = 0x3c00;
  std::memcpy(matrix.values(), &one, sizeof one);
  std::vector<std::uint16_t> dense(20 * 20, 9);
  matrix.unpack({dense.data(), DType::f16, 20, 20, 20});
  EXPECT_EQ(dense[0], one);
  EXPECT_EQ(std::count(dense.begin(), dense.end(), 0), 399);
}

TEST(Pack, RefusesWhatDoesNotFit) {
  const BlockPattern pattern = pattern::full(20, 24, {8, 8});
  const BlockIndex index(pattern);
  std::vector<float> dense(20 * 24), values(9 * 64);
  const auto pack_as = [&](void* data, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
    return [=, &index, &values] {
      pack({data, DType::f32, rows, cols, stride}, index.view(), values.data());
    };
  };
  expect_error("pack", {"[20, 24]", "got [24, 20]"}, pack_as(dense.data(), 24, 20, 24));
  expect_error("pack", {"[20, 24]", "got [0, 24]"}, pack_as(dense.data(), 0, 24, 24));
  expect_error("pack", {"stride of at least 24", "got 20"}, pack_as(dense.data(), 20, 24, 20));
  expect_error("pack", {"null pointer"}, pack_as(nullptr, 20, 24, 24));
  expect_error("pack", {"values of 9 blocks", "null pointer"}, [&] {
    pack({dense.data(), DType::f32, 20, 24, 24}, index.view(), nullptr);
  });
  expect_error("unpack", {"[20, 24]", "got [20, 25]"}, [&] {
    unpack(index.view(), values.data(), {dense.data(), DType::f32, 20, 25, 25});
  });
  expect_error("unpack", {"values of 9 blocks"}, [&] {
    unpack(index.view(), nullptr, {dense.data(), DType::f32, 20, 24, 24});
  });
  const BsrMatrix matrix(index, DType::f32);
  expect_error("unpack", {"expected f32, got bf16"}, [&] {
    matrix.unpack({dense.data(), DType::bf16, 20, 24, 24});
  });
}

}  // namespace
}  // namespace sparseloom
