// 2:4 weights: packing is exact, errors name the group, and the prunings are those of a search over all
// masks.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/backwards.h"
#include "core/expect_error.h"
#include "core/rng.h"
#include "sparseloom/generic/scalar.h"
#include "sparseloom/semi24_ops.h"

namespace sparseloom {
namespace {

using test::expect_error;

constexpr DType kAll[] = {DType::f32, DType::f16, DType::bf16, DType::f64, DType::i8, DType::f8e4m3};
constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16, DType::f64};

/// A matrix of one dtype as bytes, its rows two elements longer than its columns.
struct Dense {
  DType dtype;
  std::int64_t rows, cols, stride;
  std::vector<std::byte> bytes;

  Dense(DType type, std::int64_t r, std::int64_t c)
      : dtype(type),
        rows(r),
        cols(c),
        stride(c + 2),
        bytes(static_cast<std::size_t>(r * stride) * size_of(type)) {}
  MatrixView view() { return {bytes.data(), dtype, rows, cols, stride}; }
  std::byte* at(std::int64_t row, std::int64_t col) {
    return bytes.data() + static_cast<std::size_t>(row * stride + col) * size_of(dtype);
  }
};

struct Packed {
  std::vector<std::byte> values;
  std::vector<std::uint8_t> positions;
  Semi24View view;

  Packed(std::int64_t rows, std::int64_t cols, DType dtype) : view{rows, cols, nullptr} {
    values.resize(static_cast<std::size_t>(rows * view.row_values()) * size_of(dtype));
    positions.resize(static_cast<std::size_t>(rows * view.position_bytes()));
    view.positions = positions.data();
  }
};

Packed pack(Dense& dense, const Executor& executor = Executor::serial()) {
  Packed packed(dense.rows, dense.cols, dense.dtype);
  semi24_pack(dense.view(), packed.values.data(), packed.positions.data(), executor);
  return packed;
}

/// Random bytes at 0, 1 or 2 places of each group.
Dense sparse(DType dtype, std::int64_t rows, std::int64_t cols) {
  Dense dense(dtype, rows, cols);
  core::Rng rng(static_cast<std::uint64_t>(rows * 1000 + cols));
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t group = 0; group < cols; group += 4)
      for (std::uint64_t i = rng.below(3); i > 0; --i) {
        const std::int64_t col = group + static_cast<std::int64_t>(rng.below(4));
        for (std::size_t b = 0; b < size_of(dtype) && col < cols; ++b)
          dense.at(row, col)[b] = static_cast<std::byte>(1 + rng.below(127));
      }
  return dense;
}

TEST(Semi24, UnpacksWhatItPacked) {
  for (DType dtype : kAll)
    for (auto [rows, cols] :
         {std::pair<std::int64_t, std::int64_t>{37, 64}, {5, 1}, {33, 6}, {4, 7}, {70, 61}, {0, 8}, {8, 0}}) {
      Dense dense = sparse(dtype, rows, cols);
      const Packed packed = pack(dense, testing::backwards(3));
      Semi24::validate("test", packed.view);
      Semi24::validate_values("test", packed.view, dtype, packed.values.data());
      Dense again(dtype, rows, cols);
      semi24_unpack(packed.view, packed.values.data(), again.view(), Executor::serial());
      EXPECT_EQ(again.bytes, dense.bytes) << name_of(dtype) << " " << rows << "x" << cols;
    }
}

TEST(Semi24, HasTheFormatThatFilesHold) {
  Dense dense(DType::f32, 1, 18);
  const float row[18] = {0, 0, 5, 6, 7, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 0, 0, 3};
  std::memcpy(dense.at(0, 0), row, sizeof row);
  const Packed packed = pack(dense);
  // Groups at (2 3), (0 3), (0 3) with a filling zero in front, (0 1) of zeros, and (0 1) in the cut one.
  EXPECT_EQ(packed.positions, (std::vector<std::uint8_t>{0b1100'1110, 0b0100'1100, 0b0000'0100}));
  const float expected[10] = {5, 6, 7, 8, 0, 9, 0, 0, 0, 3};
  EXPECT_EQ(std::memcmp(packed.values.data(), expected, sizeof expected), 0);
}

TEST(Semi24, CountsMinusZeroAsZeroAndNanAsNonzero) {
  for (DType dtype : kFloats) {
    Dense dense(dtype, 1, 4);
    const double row[4] = {-0.0, -0.0, NAN, 1};
    for (std::int64_t i = 0; i < 4; ++i) kernels::store(dtype, dense.at(0, i), 0, row[i]);
    const Packed packed = pack(dense);
    EXPECT_EQ(packed.positions[0], 0b1110) << name_of(dtype);
    EXPECT_TRUE(std::isnan(kernels::load(dtype, packed.values.data(), 0)));
  }
}

TEST(Semi24, NamesTheFirstGroupWithMoreThanTwo) {
  for (const Executor& executor : {Executor::serial(), testing::backwards(2)}) {
    Dense dense(DType::i8, 100, 12);
    for (std::int64_t col : {4, 5, 6}) *dense.at(40, col) = *dense.at(90, col) = std::byte{0x80};
    expect_error("semi24_pack", {"3 in row 40, group 1 (columns 4 to 7)", "semi24_prune"},
                 [&] { pack(dense, executor); });
  }
}

TEST(Semi24, RefusesWhatIsNoIndex) {
  Packed w(2, 9, DType::f32);
  std::fill(w.positions.begin(), w.positions.end(), std::uint8_t{0x44});
  expect_error("op", {"row 0, group 3"}, [&] { Semi24::validate("op", w.view); });
  w.positions[1] = w.positions[3] = 0x04;
  Semi24::validate("op", w.view);
  w.positions[2] = 0x94;
  Semi24::validate("op", w.view);
  w.positions[2] = 0x54;
  expect_error("op", {"1 and 1 of row 1, group 1"}, [&] { Semi24::validate("op", w.view); });
  w.positions[2] = 0x44;
  reinterpret_cast<float*>(w.values.data())[10] = 1;  // row 1, group 2, position 0: column 8
  Semi24::validate_values("op", w.view, DType::f32, w.values.data());
  reinterpret_cast<float*>(w.values.data())[11] = 1;  // position 1: column 9
  expect_error("op", {"column 9 of row 1"},
               [&] { Semi24::validate_values("op", w.view, DType::f32, w.values.data()); });
}

std::vector<char> prune(Dense& w, Semi24Pruning pruning, const Executor& executor = Executor::serial()) {
  const auto mask = std::make_unique<bool[]>(static_cast<std::size_t>(w.rows * w.cols));
  semi24_prune(w.view(), pruning, mask.get(), executor);
  return {mask.get(), mask.get() + w.rows * w.cols};
}

/// Small integers, of either sign, so that there are ties; now and then a NaN.
Dense with_ties(DType dtype, std::int64_t rows, std::int64_t cols, bool nan) {
  Dense dense(dtype, rows, cols);
  core::Rng rng(7);
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t col = 0; col < cols; ++col)
      kernels::store(dtype, dense.at(row, col), 0,
                     nan && rng.below(40) == 0 ? NAN : static_cast<double>(rng.below(13)) - 6);
  return dense;
}

double magnitude(Dense& w, std::int64_t row, std::int64_t col) {
  if (row >= w.rows || col >= w.cols) return 0;
  const double x = kernels::load(w.dtype, w.at(row, col), 0);
  return std::isnan(x) ? INFINITY : std::fabs(x);
}

constexpr Semi24Pruning kPrunings[] = {Semi24Pruning::magnitude, Semi24Pruning::transposable_greedy,
                                       Semi24Pruning::transposable_exact};

TEST(Semi24Prune, KeepsTheTwoLargestOfEachGroup) {
  for (DType dtype : kFloats) {
    Dense w = with_ties(dtype, 41, 38, true);
    const std::vector<char> mask = prune(w, Semi24Pruning::magnitude);
    for (std::int64_t row = 0; row < w.rows; ++row)
      for (std::int64_t col = 0; col < w.cols; ++col) {
        const std::int64_t group = col / 4 * 4;
        int ahead = 0;  // of this element: larger ones, and equal ones in front
        for (std::int64_t i = group; i < std::min(group + 4, w.cols); ++i)
          ahead += magnitude(w, row, i) > magnitude(w, row, col) ||
                   (magnitude(w, row, i) == magnitude(w, row, col) && i < col);
        ASSERT_EQ(mask[row * w.cols + col] != 0, ahead < 2) << name_of(dtype) << row << "," << col;
      }
  }
}

/// Calls f(mask) for each of the 2^16 masks with exactly two elements in every row and column, ascending.
template <class F>
void for_each_pattern(F&& f) {
  for (unsigned mask = 0; mask < 1u << 16; ++mask) {
    bool balanced = true;
    for (unsigned i = 0; i < 4 && balanced; ++i)
      balanced = std::popcount(mask & 0xfu << (4 * i)) == 2 && std::popcount(mask & 0x1111u << i) == 2;
    if (balanced) f(mask);
  }
}

TEST(Semi24Prune, ExactIsTheBestOfAllPatterns) {
  std::vector<unsigned> patterns;
  for_each_pattern([&](unsigned mask) { patterns.push_back(mask); });
  ASSERT_EQ(patterns.size(), 90u);
  for (DType dtype : kFloats) {
    Dense w = with_ties(dtype, 42, 39, false);  // sums of integers: the same in any order
    const std::vector<char> mask = prune(w, Semi24Pruning::transposable_exact);
    for (std::int64_t row = 0; row < w.rows; row += 4)
      for (std::int64_t col = 0; col < w.cols; col += 4) {
        unsigned best = 0;
        double most = -1;
        for (unsigned pattern : patterns) {
          double sum = 0;
          for (unsigned i = 0; i < 16; ++i)
            if (pattern >> i & 1u) sum += magnitude(w, row + i / 4, col + i % 4);
          if (sum > most) most = sum, best = pattern;
        }
        for (unsigned i = 0; i < 16; ++i)
          if (row + i / 4 < w.rows && col + i % 4 < w.cols) {
            ASSERT_EQ(mask[(row + i / 4) * w.cols + col + i % 4] != 0, (best >> i & 1u) != 0)
                << name_of(dtype) << " tile " << row << "," << col;
          }
      }
  }
}

TEST(Semi24Prune, GreedyTakesElementsInDescendingOrder) {
  for (DType dtype : kFloats) {
    Dense w = with_ties(dtype, 42, 39, true);
    const std::vector<char> mask = prune(w, Semi24Pruning::transposable_greedy);
    for (std::int64_t row = 0; row < w.rows; row += 4)
      for (std::int64_t col = 0; col < w.cols; col += 4) {
        std::vector<unsigned> order(16);
        for (unsigned i = 0; i < 16; ++i) order[i] = i;
        std::stable_sort(order.begin(), order.end(), [&](unsigned a, unsigned b) {
          return magnitude(w, row + a / 4, col + a % 4) > magnitude(w, row + b / 4, col + b % 4);
        });
        int in_row[4] = {}, in_col[4] = {};
        for (unsigned i : order) {
          const bool room = in_row[i / 4] < 2 && in_col[i % 4] < 2;
          if (room) ++in_row[i / 4], ++in_col[i % 4];
          if (row + i / 4 < w.rows && col + i % 4 < w.cols) {
            ASSERT_EQ(mask[(row + i / 4) * w.cols + col + i % 4] != 0, room) << name_of(dtype);
          }
        }
      }
  }
}

TEST(Semi24Prune, GreedyMayEndWithSevenAndKeepMoreThanExact) {
  // All but (3, 3) of a tile's greedy choice; row 3 and column 3 have room, and cross in a taken element.
  Dense w(DType::f32, 4, 4);
  const float tile[16] = {9, 9, 0, 0, 9, 0, 9, 0, 0, 9, 9, 0, 0, 0, 0, 9};
  std::memcpy(w.bytes.data(), std::vector<float>(w.bytes.size() / 4).data(), w.bytes.size());
  for (std::int64_t i = 0; i < 16; ++i) std::memcpy(w.at(i / 4, i % 4), tile + i, sizeof(float));
  const auto kept = [&](Semi24Pruning pruning) {
    const std::vector<char> mask = prune(w, pruning);
    double sum = 0;
    for (std::int64_t i = 0; i < 16; ++i) sum += mask[i] ? tile[i] : 0;
    return std::pair<std::ptrdiff_t, double>{std::count(mask.begin(), mask.end(), 1), sum};
  };
  EXPECT_EQ(kept(Semi24Pruning::transposable_greedy), (std::pair<std::ptrdiff_t, double>{7, 63}));
  EXPECT_EQ(kept(Semi24Pruning::transposable_exact), (std::pair<std::ptrdiff_t, double>{8, 54}));
}

TEST(Semi24Prune, DoesNotDependOnThreads) {
  Dense w = with_ties(DType::f32, 135, 77, true);
  for (Semi24Pruning pruning : kPrunings)
    EXPECT_EQ(prune(w, pruning), prune(w, pruning, testing::backwards(4)));
}

TEST(Semi24Prune, PacksAfterwardsAndSoDoesTheTransposed) {
  Dense w = with_ties(DType::f32, 43, 37, false);
  for (Semi24Pruning pruning : kPrunings) {
    const std::vector<char> mask = prune(w, pruning);
    Dense kept(DType::f32, w.rows, w.cols), turned(DType::f32, w.cols, w.rows);
    for (std::int64_t row = 0; row < w.rows; ++row)
      for (std::int64_t col = 0; col < w.cols; ++col)
        if (mask[row * w.cols + col]) {
          std::memcpy(kept.at(row, col), w.at(row, col), sizeof(float));
          std::memcpy(turned.at(col, row), w.at(row, col), sizeof(float));
        }
    pack(kept);
    if (pruning != Semi24Pruning::magnitude) pack(turned);
  }
}

TEST(Semi24Compress, IsPruneAndPackOfWAndOfItsTransposed) {
  for (DType dtype : kFloats)
    for (auto [rows, cols] : {std::pair<std::int64_t, std::int64_t>{43, 37}, {8, 16}, {1, 3}, {0, 4}})
      for (Semi24Pruning pruning : kPrunings) {
        Dense w = with_ties(dtype, rows, cols, true);
        const std::vector<char> mask = prune(w, pruning);
        Dense kept(dtype, rows, cols), turned(dtype, cols, rows);
        for (std::int64_t row = 0; row < rows; ++row)
          for (std::int64_t col = 0; col < cols; ++col)
            if (mask[row * cols + col]) {
              std::memcpy(kept.at(row, col), w.at(row, col), size_of(dtype));
              std::memcpy(turned.at(col, row), w.at(row, col), size_of(dtype));
            }
        const Packed expected = pack(kept);
        Packed got(rows, cols, dtype), got_turned(cols, rows, dtype);
        const std::int64_t mask_bytes = (cols + 7) / 8;
        std::vector<std::uint8_t> bits(static_cast<std::size_t>(rows * mask_bytes), 0xff);
        const bool both = pruning != Semi24Pruning::magnitude;
        semi24_compress(
            w.view(), pruning,
            {got.values.data(), got.positions.data(), bits.data(), both ? got_turned.values.data() : nullptr,
             both ? got_turned.positions.data() : nullptr},
            testing::backwards(2));
        EXPECT_EQ(got.values, expected.values) << name_of(dtype) << rows << "x" << cols;
        EXPECT_EQ(got.positions, expected.positions);
        for (std::int64_t row = 0; row < rows; ++row)
          for (std::int64_t col = 0; col < 8 * mask_bytes; ++col)
            ASSERT_EQ(bits[row * mask_bytes + col / 8] >> (col % 8) & 1,
                      col < cols && mask[row * cols + col] ? 1 : 0);
        if (!both || rows == 0) continue;
        const Packed expected_turned = pack(turned);
        EXPECT_EQ(got_turned.values, expected_turned.values);
        EXPECT_EQ(got_turned.positions, expected_turned.positions);
      }
}

TEST(Semi24Compress, RefusesWhatHasNoAnswer) {
  Dense w(DType::f32, 4, 4), bytes(DType::i8, 4, 4);
  Packed to(4, 4, DType::f32), turned(4, 4, DType::f32);
  std::uint8_t mask[4];
  const Semi24Compressed both{to.values.data(), to.positions.data(), mask, turned.values.data(),
                              turned.positions.data()};
  expect_error("semi24_compress", {"magnitude", "transposable_greedy"},
               [&] { semi24_compress(w.view(), Semi24Pruning::magnitude, both, Executor::serial()); });
  expect_error("semi24_compress", {"int8"}, [&] {
    semi24_compress(bytes.view(), Semi24Pruning::transposable_exact, both, Executor::serial());
  });
  Semi24Compressed lacking = both;
  lacking.mask = nullptr;
  expect_error("semi24_compress", {"a null pointer", "only those of W^T"}, [&] {
    semi24_compress(w.view(), Semi24Pruning::transposable_exact, lacking, Executor::serial());
  });
  Semi24Compressed half = both;
  half.transposed_positions = nullptr;
  expect_error("semi24_compress", {"one of them"}, [&] {
    semi24_compress(w.view(), Semi24Pruning::transposable_exact, half, Executor::serial());
  });
  expect_error("semi24_compress", {"f64", "CPU"}, [&] {
    Dense doubles(DType::f64, 4, 4);
    semi24_compress(doubles.view(), Semi24Pruning::transposable_exact, both, Executor::cuda(0));
  });
}

TEST(Semi24Prune, RefusesEightBitsAndDevices) {
  Dense w(DType::i8, 4, 4);
  expect_error("semi24_prune", {"int8"}, [&] { prune(w, Semi24Pruning::magnitude); });
  Dense other(DType::f32, 4, 4);
  expect_error("semi24_prune", {"cuda:0", ".cpu()"},
               [&] { prune(other, Semi24Pruning::magnitude, Executor::cuda(0)); });
}

}  // namespace
}  // namespace sparseloom
