// n:m and n:m:g weights: what is stored, copies, and the product of n:m:g against fp64.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory_resource>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/allocation.h"
#include "core/backwards.h"
#include "core/expect_error.h"
#include "core/rng.h"
#include "sparseloom/generic/scalar.h"
#include "sparseloom/nm_ops.h"
#include "sparseloom/nmg_linear.h"

namespace sparseloom {
namespace {

std::vector<float> drawn(std::int64_t count, std::uint64_t seed) {
  core::Rng rng(seed);
  std::vector<float> all(static_cast<std::size_t>(count));
  for (float& x : all) x = static_cast<float>(2 * rng.uniform() - 1);
  return all;
}

TEST(NmPositions, FillGroupsUpAndRefuseTooMany) {
  // cols = 7 with m = 4: the last group has three columns.
  const bool mask[2][7] = {{0, 1, 0, 1, 0, 0, 0}, {0, 0, 0, 1, 0, 0, 1}};
  const NmView shape{2, 7, 2, 4, nullptr};
  std::vector<std::uint8_t> positions(8);
  nm_positions(&mask[0][0], shape, positions.data(), testing::backwards(2));
  EXPECT_EQ(positions, (std::vector<std::uint8_t>{1, 3, 0, 1, 0, 3, 0, 2}));
  NmView w = shape;
  w.positions = positions.data();
  Nm::validate("test", w);
  const NmView one{2, 7, 1, 4, nullptr};
  std::vector<std::uint8_t> other(4);
  test::expect_error("nm_positions", {"at most 1 elements in each group of 4", "2 in row 0, group 0"},
                     [&] { nm_positions(&mask[0][0], one, other.data(), testing::backwards(2)); });
  positions[5] = 0;
  test::expect_error("test", {"0 after 0 in row 1, group 0"}, [&] { Nm::validate("test", w); });
  positions[5] = 4;
  test::expect_error("test", {"4 after 0 in row 1"}, [&] { Nm::validate("test", w); });
}

TEST(NmCopies, UnpackUndoesPack) {
  const std::int64_t rows = 9, cols = 23, n = 3, m = 5;
  const std::vector<float> dense = drawn(rows * cols, 1);
  std::vector<std::uint8_t> positions(static_cast<std::size_t>(rows * 5 * n));
  core::Rng rng(2);
  for (std::size_t group = 0; group < positions.size() / 3; ++group) {
    const auto skip = static_cast<int>(rng.below(3));
    for (int i = 0; i < 3; ++i) positions[group * 3 + i] = static_cast<std::uint8_t>(i + (i >= skip ? 2 : 0));
  }
  const NmView w{rows, cols, n, m, positions.data()};
  Nm::validate("test", w);
  std::vector<float> values(positions.size(), 9), back(dense.size(), 9);
  nm_pack(view(dense.data(), rows, cols), w, values.data(), testing::backwards(3));
  nm_unpack(w, values.data(), view(back.data(), rows, cols), testing::backwards(3));
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::uint8_t* const group = positions.data() + (r * 5 + c / m) * n;
      const bool stored = std::count(group, group + n, c % m) > 0;
      EXPECT_EQ(back[r * cols + c], stored ? dense[r * cols + c] : 0) << r << " " << c;
    }
}

struct Shape {
  std::int64_t rows, cols, n, m, g;
};
constexpr Shape kShapes[] = {{64, 64, 1, 8, 4}, {100, 75, 2, 5, 3}, {37, 40, 1, 4, 16}, {24, 6, 5, 6, 2},
                             {3, 5, 2, 4, 1},   {40, 18, 3, 3, 7},  {130, 50, 6, 8, 1}, {1, 300, 1, 256, 1}};

/// An n:m:g weight chosen of random elements, and its dense twin.
struct NmgCase {
  std::vector<float> dense;
  std::vector<std::int16_t> order;
  NmgView w;

  explicit NmgCase(const Shape& s, std::uint64_t seed = 3)
      : dense(drawn(s.rows * s.cols, seed)), w(nmg_view("test", s.rows, s.cols, s.n, s.m, s.g)) {
    order.resize(static_cast<std::size_t>(w.chunks() * w.strips() * w.chunk_rows()));
    nmg_order(view(dense.data(), s.rows, s.cols), w, order.data(), testing::backwards(3));
    w.order = order.data();
  }
  ConstMatrixView matrix() const { return view(dense.data(), w.rows, w.cols); }
};

TEST(NmgPatterns, AreAllAndNeighboursShareAllButOnePlace) {
  for (auto [n, m] : {std::pair<std::int64_t, std::int64_t>{1, 8}, {2, 5}, {3, 7}, {4, 4}, {5, 6}}) {
    const NmgView w = nmg_view("test", 1, 1, n, m, 1);
    std::set<std::vector<std::uint8_t>> seen;
    std::vector<std::uint8_t> before;
    for (std::int64_t p = 0; p < w.patterns; ++p) {
      const std::vector<std::uint8_t> places(w.places + p * n, w.places + (p + 1) * n);
      EXPECT_TRUE(std::is_sorted(places.begin(), places.end())) << p;
      EXPECT_LT(places.back(), m);
      EXPECT_TRUE(seen.insert(places).second) << p;
      std::vector<std::uint8_t> shared;
      std::set_intersection(places.begin(), places.end(), before.begin(), before.end(),
                            std::back_inserter(shared));
      if (p > 0) {
        EXPECT_EQ(std::ssize(shared), n - 1) << p;
      }
      before = places;
    }
  }
  EXPECT_EQ(nmg_patterns(2, 16), 120);
  EXPECT_EQ(nmg_patterns(8, 16), 12870);
  EXPECT_EQ(nmg_patterns(10, 20), 0);
}

TEST(NmgOrder, UsesEveryPatternExactlyGTimes) {
  for (const Shape& s : kShapes) {
    const NmgCase c(s);
    Nmg::validate("test", c.w);  // every output of a chunk once, so each place in the order is a use
    // Which elements of a row are stored follows from its place alone: n of each m, or fewer at the edge.
    for (std::int64_t row = 0; row < s.rows; ++row) {
      std::vector<std::int64_t> in_strip(static_cast<std::size_t>(c.w.strips()));
      std::int64_t last = -1;
      Nmg::for_each_in_row(c.w, row, [&](std::int64_t col, std::int64_t slot) {
        EXPECT_LT(last, col);
        EXPECT_LT(slot, Nmg::stored(c.w));
        last = col, ++in_strip[static_cast<std::size_t>(col / s.m)];
      });
      for (std::size_t strip = 0; strip < in_strip.size(); ++strip) {
        const bool whole = static_cast<std::int64_t>(strip + 1) * s.m <= s.cols;
        EXPECT_TRUE(whole ? in_strip[strip] == s.n : in_strip[strip] <= s.n) << row << " " << strip;
      }
    }
  }
}

TEST(NmgOrder, TakesTheBestPairsFirst) {
  // m = 2, n = 1, g = 1: two outputs share the two columns. Output 1 has the largest element and takes its
  // column; output 0 has to take the other one, though both of its elements prefer column 0.
  const float dense[2][2] = {{-3, 1}, {4, 2}};
  std::int16_t order[2] = {-1, -1};
  const NmgView w = nmg_view("test", 2, 2, 1, 2, 1);
  nmg_order(view(&dense[0][0], 2, 2), w, order, Executor::serial());
  EXPECT_EQ(order[0], 1);
  EXPECT_EQ(order[1], 0);
  const float ties[2][2] = {{1, std::nanf("")}, {1, std::numeric_limits<float>::infinity()}};
  nmg_order(view(&ties[0][0], 2, 2), w, order, Executor::serial());
  EXPECT_EQ(order[1], 0);  // NaN counts as Inf, and the lowest output comes first
}

/// Counts what is asked of it.
class Counting : public std::pmr::memory_resource {
 public:
  std::size_t bytes = 0;

 private:
  void* do_allocate(std::size_t size, std::size_t alignment) override {
    bytes += size;
    return std::pmr::get_default_resource()->allocate(size, alignment);
  }
  void do_deallocate(void* memory, std::size_t size, std::size_t alignment) override {
    std::pmr::get_default_resource()->deallocate(memory, size, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

TEST(NmgOrder, NeedsMemoryForAChunkAlone) {
  const std::vector<float> dense = drawn(924 * 12, 4);
  const NmgView w = nmg_view("test", 924, 12, 6, 12, 1);
  std::vector<std::int16_t> order(924);
  Counting scratch;
  nmg_order(view(dense.data(), 924, 12), w, order.data(), Executor::serial(), &scratch);
  NmgView made = w;
  made.order = order.data();
  Nmg::validate("test", made);
  EXPECT_LE(scratch.bytes, 924u * (16 + 2));
}

TEST(NmgOrder, KeepsNoMoreThanNm) {
  for (const Shape& s : kShapes) {
    const NmgCase c(s);
    double kept = 0, best = 0;
    for (std::int64_t row = 0; row < s.rows; ++row) {
      Nmg::for_each_in_row(c.w, row, [&](std::int64_t col, std::int64_t) {
        kept += std::fabs(static_cast<double>(c.dense[row * s.cols + col]));
      });
      for (std::int64_t first = 0; first < s.cols; first += s.m) {
        std::vector<double> group;
        for (std::int64_t col = first; col < std::min(first + s.m, s.cols); ++col)
          group.push_back(std::fabs(static_cast<double>(c.dense[row * s.cols + col])));
        std::sort(group.rbegin(), group.rend());
        for (std::int64_t i = 0; i < std::min<std::int64_t>(s.n, std::ssize(group)); ++i) best += group[i];
      }
    }
    EXPECT_LE(kept, best + 1e-9);
    EXPECT_GT(kept, static_cast<double>(s.n) / static_cast<double>(s.m) * best * 0.5);
  }
}

TEST(NmgCopies, UnpackUndoesPack) {
  for (const Shape& s : kShapes) {
    const NmgCase c(s);
    std::vector<float> values(static_cast<std::size_t>(Nmg::stored(c.w)), 9), back(c.dense.size(), 9);
    nmg_pack(c.matrix(), c.w, values.data(), testing::backwards(3));
    nmg_unpack(c.w, values.data(), view(back.data(), s.rows, s.cols), testing::backwards(3));
    std::vector<float> expected(c.dense.size());
    for (std::int64_t row = 0; row < s.rows; ++row)
      Nmg::for_each_in_row(c.w, row, [&](std::int64_t col, std::int64_t) {
        expected[row * s.cols + col] = c.dense[row * s.cols + col];
      });
    EXPECT_EQ(back, expected);
    EXPECT_EQ(std::count(values.begin(), values.end(), 9.0f), 0);  // padding is zero
    // Rows that begin inside a chunk.
    std::vector<float> some(c.dense.size(), 9);
    const std::int64_t begin = s.rows / 3, end = std::max(begin, s.rows - 1);
    Nmg::unpack(c.w, values.data(), view(some.data(), s.rows, s.cols), begin, end);
    for (std::int64_t i = 0; i < s.rows * s.cols; ++i)
      EXPECT_EQ(some[i], i / s.cols >= begin && i / s.cols < end ? expected[i] : 9) << i;
  }
}

TEST(NmgErrors, NameWhatIsWrong) {
  test::expect_error("test", {"1 <= n <= m <= 256", "n=3, m=2"}, [] { nmg_view("test", 4, 4, 3, 2, 1); });
  test::expect_error("test", {"g >= 1", "g=0"}, [] { nmg_view("test", 4, 4, 1, 2, 0); });
  test::expect_error("test", {"2^15", "n=10, m=20"}, [] { nmg_view("test", 4, 4, 10, 20, 1); });
  test::expect_error("test", {"2^15", "g=9000"}, [] { nmg_view("test", 4, 4, 1, 4, 9000); });
  NmgCase c({16, 8, 1, 4, 2});
  c.order[9] = c.order[8];
  test::expect_error("test", {"twice in chunk 0, strip 1"}, [&] { Nmg::validate("test", c.w); });
  c.order[9] = 8;
  test::expect_error("test", {"8 in chunk 0, strip 1"}, [&] { Nmg::validate("test", c.w); });
}

TEST(NmErrors, AreFoundInAnIndexThatWasRewritten) {
  NmgCase c({64, 8, 1, 4, 16});
  nmg_require_valid("test", c.w);
  nmg_require_valid("test", c.w);
  c.order[0] = 64;
  test::expect_error("test", {"64 in chunk 0, strip 0"}, [&] { nmg_require_valid("test", c.w); });
  std::vector<std::uint8_t> positions{0, 1, 2, 3};
  NmView w{2, 8, 1, 4, positions.data()};
  nm_require_valid("test", w);
  positions[3] = 4;
  test::expect_error("test", {"4 in row 1, group 1"}, [&] { nm_require_valid("test", w); });
  w.positions = nullptr;
  test::expect_error("test", {"a null pointer"}, [&] { nm_require_valid("test", w); });
  w.rows = std::int64_t{1} << 31;
  test::expect_error("test", {"0 to 2^31 - 1"}, [&] { nm_require_valid("test", w); });
  test::expect_error("test", {"0 to 2^31 - 1"}, [] { nmg_view("test", 4, std::int64_t{1} << 31, 1, 4, 1); });
}

using ProductCase = std::tuple<DType, std::int64_t>;
class NmgProducts : public ::testing::TestWithParam<ProductCase> {};
INSTANTIATE_TEST_SUITE_P(Tokens, NmgProducts,
                         ::testing::Combine(::testing::Values(DType::f32, DType::f16, DType::bf16),
                                            ::testing::Values(1, 5, 16, 37, 70)),
                         [](const auto& info) {
                           return std::string(name_of(std::get<0>(info.param))) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST_P(NmgProducts, OfEveryRowAreThoseOfFp64) {
  const auto [dtype, tokens] = GetParam();
  const double eps = dtype == DType::f32 ? 0x1p-23 : dtype == DType::f16 ? 0x1p-10 : 0x1p-7;
  for (const Shape& s : kShapes)
    for (const bool with_bias : {false, true}) {
      const NmgCase c(s);
      const auto stored = static_cast<std::size_t>(Nmg::stored(c.w));
      std::vector<float> packed(stored);
      nmg_pack(c.matrix(), c.w, packed.data(), Executor::serial());
      // Rows of x and y lie apart, with NaN between that no kernel may read or write.
      const std::int64_t x_stride = s.cols + 3, y_stride = s.rows + 5;
      const std::size_t size = size_of(dtype);
      std::vector<std::byte> values(stored * size), x(static_cast<std::size_t>(tokens * x_stride) * size),
          bias(static_cast<std::size_t>(s.rows) * size);
      for (std::size_t i = 0; i < stored; ++i) kernels::store(dtype, values.data(), i, packed[i]);
      core::Rng rng(5);
      for (std::int64_t i = 0; i < tokens * x_stride; ++i)
        kernels::store(dtype, x.data(), i, i % x_stride < s.cols ? 2 * rng.uniform() - 1 : std::nan(""));
      for (std::int64_t i = 0; i < s.rows; ++i) kernels::store(dtype, bias.data(), i, rng.uniform());
      for (const char* kernel :
           {"avx512bf16_grouped", "avx512_grouped", "avx2_grouped", "dense", "reference"})
        for (int threads : {1, 3}) {
          const Executor executor = testing::backwards(threads);
          NmgLinear::Problem problem = NmgLinear::describe(c.w, Direction::forward, dtype, tokens);
          problem.bias = with_bias;
          const auto open = NmgLinear::plan(problem, executor);
          const auto found = std::find_if(open->candidates.begin(), open->candidates.end(),
                                          [&](const Candidate& each) { return each.kernel == kernel; });
          if (found == open->candidates.end() || !found->refusal.empty()) continue;
          const auto plan = NmgLinear::plan(problem, executor, kernel);
          Workspace workspace;
          std::vector<std::byte> y(static_cast<std::size_t>(tokens * y_stride) * size, std::byte{0x55});
          const std::vector<std::byte> untouched = y;
          MatmulArgs args;
          args.a = x.data(), args.a_stride = x_stride, args.values = values.data();
          args.bias = with_bias ? bias.data() : nullptr;
          args.out = y.data(), args.out_stride = y_stride;
          testing::calling([&] {
            return kernel + (" of n:m:g " + std::string(name_of(dtype))) + " m=" + std::to_string(tokens) +
                   " [" + std::to_string(s.rows) + ", " + std::to_string(s.cols) + "] " +
                   std::to_string(s.n) + ":" + std::to_string(s.m) + ":" + std::to_string(s.g);
          });
          NmgLinear::run(*plan, args, c.w, workspace.at_least(plan->workspace_bytes), executor);
          for (std::int64_t t = 0; t < tokens; ++t)
            for (std::int64_t row = 0; row < s.rows; ++row) {
              double sum = with_bias ? kernels::load(dtype, bias.data(), row) : 0, norm = std::fabs(sum);
              Nmg::for_each_in_row(c.w, row, [&](std::int64_t col, std::int64_t slot) {
                const double product = kernels::load(dtype, x.data(), t * x_stride + col) *
                                       kernels::load(dtype, values.data(), slot);
                sum += product, norm += std::fabs(product);
              });
              const double got = kernels::load(dtype, y.data(), t * y_stride + row);
              ASSERT_NEAR(got, sum, eps * std::fabs(sum) + 0x1p-21 * norm)
                  << kernel << " m=" << tokens << " " << s.n << ":" << s.m << ":" << s.g << " " << t << " "
                  << row;
            }
          for (std::int64_t i = 0; i < tokens * y_stride; ++i)
            if (i % y_stride >= s.rows) {
              ASSERT_EQ(y[i * size], untouched[i * size]) << kernel;
            }
        }
    }
}

}  // namespace
}  // namespace sparseloom
