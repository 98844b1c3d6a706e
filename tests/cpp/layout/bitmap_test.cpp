// Bitmaps as a layout: errors name the row, and copies to dense rows and back copy bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/backwards.h"
#include "core/expect_error.h"
#include "sparseloom/bitmap_ops.h"

namespace sparseloom {
namespace {

using test::expect_error;

struct Index {
  std::vector<std::uint8_t> bits{0x81, 0x01, 0, 0, 0x06, 0x02};
  std::vector<std::int32_t> crow{0, 3, 3, 6};

  BitmapView view() const {
    BitmapView w;
    w.rows = 3, w.cols = 10, w.stored = 6, w.bits = bits.data(), w.crow = crow.data();
    return w;
  }
};

TEST(BitmapLayout, NamesTheFirstRowThatIsWrong) {
  Bitmap::validate("test", Index().view());
  const auto refuses = [](std::initializer_list<std::string> words, auto spoil) {
    Index index;
    spoil(index);
    expect_error("test", words, [&] { Bitmap::validate("test", index.view()); });
  };
  refuses({"crow[1] = 2", "got 3"}, [](Index& i) { i.bits[0] = 1; });
  refuses({"crow[2] = 3", "got 4"}, [](Index& i) { i.crow[2] = 4; });
  refuses({"no bit behind column 9", "row 2"}, [](Index& i) { i.bits[5] = 4; });
  const Index index;
  BitmapView none = index.view();
  none.bits = nullptr;
  expect_error("test", {"a null pointer"}, [&] { Bitmap::validate("test", none); });
  BitmapView more = index.view();
  more.stored = 7;
  expect_error("test", {"7 bits", "6"}, [&] { Bitmap::validate("test", more); });
}

TEST(BitmapLayout, IsValidatedAgainWhenItChanges) {
  Index index;
  bitmap_require_valid("test", index.view());
  index.bits[2] = 1;
  expect_error("test", {"crow[2] = 4"}, [&] { bitmap_require_valid("test", index.view()); });
  const std::uint64_t before = 1, after = 2;
  Index counted;
  bitmap_require_valid("test", counted.view(), &before);
  counted.crow[1] = 2;
  expect_error("test", {"crow[1] = 3"}, [&] { bitmap_require_valid("test", counted.view(), &after); });
}

TEST(BitmapLayout, UnpacksBits) {
  const Index index;
  const std::vector<std::uint16_t> values{1, 0xffff, 3, 4, 5, 6};
  std::vector<std::uint16_t> dense(33, 9);
  Bitmap::unpack(index.view(), values.data(), {dense.data(), DType::bf16, 3, 10, 11}, 0, 3);
  const std::vector<std::uint16_t> wanted{1, 0, 0, 0, 0, 0, 0, 0xffff, 3, 0, 9, 0, 0, 0, 0, 0, 0,
                                          0, 0, 0, 0, 9, 0, 4, 5,      0, 0, 0, 0, 0, 0, 6, 9};
  EXPECT_EQ(dense, wanted);
}

template <class W>
void expect_copies(DType dtype, const BitmapView& w) {
  std::vector<W> values(static_cast<std::size_t>(w.stored));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<W>(i + 1);
  const std::int64_t stride = w.cols + 1;
  std::vector<W> dense(static_cast<std::size_t>(w.rows * stride), 9), wanted = dense;
  for (std::int64_t row = 0; row < w.rows; ++row) {
    std::fill_n(wanted.begin() + row * stride, w.cols, W{0});
    Bitmap::for_each_in_row(w, row, [&](std::int64_t col, std::int64_t slot) {
      wanted[static_cast<std::size_t>(row * stride + col)] = values[static_cast<std::size_t>(slot)];
    });
  }
  std::vector<W> by_vectors = dense, packed(values.size()), packed_by_vectors(values.size());
  Bitmap::unpack(w, values.data(), {dense.data(), dtype, w.rows, w.cols, stride}, 0, w.rows);
  EXPECT_EQ(dense, wanted);
  bitmap_unpack(w, values.data(), {by_vectors.data(), dtype, w.rows, w.cols, stride}, Executor::serial());
  EXPECT_EQ(by_vectors, wanted);
  Bitmap::pack(w, {dense.data(), dtype, w.rows, w.cols, stride}, packed.data(), 0, w.rows);
  EXPECT_EQ(packed, values);
  bitmap_pack(w, {dense.data(), dtype, w.rows, w.cols, stride}, packed_by_vectors.data(),
              testing::backwards(3));
  EXPECT_EQ(packed_by_vectors, values);
}

TEST(BitmapLayout, CopiesEverySizeAsItsElementsAreListed) {
  for (std::int64_t cols : {1, 7, 8, 20, 64, 131})
    for (unsigned kept : {0u, 0xffu, 0xa5u, 0x13u}) {
      SCOPED_TRACE(std::to_string(cols) + " columns of " + std::to_string(kept));
      BitmapView w;
      w.rows = 3, w.cols = cols;
      std::vector<std::uint8_t> bits(static_cast<std::size_t>(w.rows * w.row_bytes()));
      std::vector<std::int32_t> crow{0};
      for (std::int64_t row = 0; row < w.rows; ++row) {
        for (std::int64_t col = 0; col < cols; ++col)
          if ((kept >> ((col + row) % 8) & 1) != 0)
            bits[static_cast<std::size_t>(row * w.row_bytes() + col / 8)] |=
                static_cast<std::uint8_t>(1u << (col % 8)),
                ++w.stored;
        crow.push_back(static_cast<std::int32_t>(w.stored));
      }
      w.bits = bits.data(), w.crow = crow.data();
      expect_copies<std::uint16_t>(DType::bf16, w);
      expect_copies<std::uint32_t>(DType::f32, w);
      expect_copies<std::uint64_t>(DType::f64, w);
    }
}

}  // namespace
}  // namespace sparseloom
