// Watts-Strogatz and Barabasi-Albert patterns: their counts, their two ends, fixed results, refusals, and the
// generators by name.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "core/expect_error.h"
#include "pattern/pictures.h"
#include "sparseloom/pattern.h"

namespace sparseloom {
namespace {

using test::expect_error;
using test::from_picture;
using test::row_counts;

constexpr BlockShape kBlock{8, 8};

BlockPattern watts_strogatz(std::int64_t nodes, std::int64_t k, double p, std::uint64_t seed) {
  return pattern::watts_strogatz(std::max<std::int64_t>(0, nodes * 8 - 3), nodes * 8, kBlock, k, p, seed);
}

BlockPattern barabasi_albert(std::int64_t nodes, std::int64_t m, std::uint64_t seed) {
  return pattern::barabasi_albert(nodes * 8, nodes * 8 - 5, kBlock, m, seed);
}

void expect_graph(const BlockPattern& pattern) {
  for (std::int64_t r = 0; r < pattern.block_rows(); ++r) {
    ASSERT_TRUE(pattern.test(r, r)) << "no diagonal block " << r;
    for (std::int64_t c = 0; c < r; ++c) ASSERT_EQ(pattern.test(r, c), pattern.test(c, r)) << r << ", " << c;
  }
}

TEST(GraphPatterns, WattsStrogatzKeepsItsNumberOfEdges) {
  for (const std::int64_t nodes : {1, 2, 3, 5, 16, 33, 80}) {
    for (const std::int64_t k : {0, 2, 4, 8, 32}) {
      if (k > 0 && k >= nodes) continue;
      for (const double p : {0.0, 0.05, 0.2, 1.0}) {
        const BlockPattern made = watts_strogatz(nodes, k, p, 7);
        SCOPED_TRACE(testing::Message() << nodes << " nodes, k " << k << ", p " << p);
        ASSERT_EQ(made.count(), nodes * (k + 1));
        expect_graph(made);
      }
    }
  }
  EXPECT_EQ(watts_strogatz(0, 0, 0.5, 1).count(), 0);
}

TEST(GraphPatterns, WattsStrogatzWithoutRewiringIsTheRing) {
  EXPECT_EQ(pattern::watts_strogatz(48, 48, kBlock, 2, 0, 3),
            from_picture({"##...#", "###...", ".###..", "..###.", "...###", "#...##"}));
}

TEST(GraphPatterns, WattsStrogatzRewiresThatShareOfEdges) {
  const std::int64_t nodes = 1000, k = 8;
  const BlockPattern ring = watts_strogatz(nodes, k, 0, 1);
  for (const double p : {0.1, 0.5}) {
    const std::int64_t moved = (watts_strogatz(nodes, k, p, 5) - ring).count() / 2;
    // Of nodes * k / 2 = 4000 edges; three standard deviations are 57 and 95. Few land in the ring again.
    EXPECT_NEAR(static_cast<double>(moved), 4000 * p, 110) << p;
  }
  // A node keeps the k / 2 edges that it was given, so none is cut off.
  const std::vector<std::int64_t> degrees = row_counts(watts_strogatz(nodes, k, 1, 5));
  EXPECT_GE(*std::min_element(degrees.begin(), degrees.end()), k / 2 + 1);
}

TEST(GraphPatterns, BarabasiAlbertHasItsBlocks) {
  for (const std::int64_t nodes : {2, 3, 9, 64, 300}) {
    for (const std::int64_t m : {1, 2, 8, 63}) {
      if (m >= nodes) continue;
      const BlockPattern made = barabasi_albert(nodes, m, 11);
      SCOPED_TRACE(testing::Message() << nodes << " nodes, m " << m);
      ASSERT_EQ(made.count(), 2 * m * (nodes - m) + nodes + m * (m - 1));
      expect_graph(made);
      for (std::int64_t node = m; node < nodes; ++node) ASSERT_GE(made.row_count(node), m + 1);
    }
  }
}

// Degrees fall as degree^-3: hubs of many times the mean, which a uniform choice of targets would not give
// (its largest degree grows with the logarithm of the nodes: about 40 here).
TEST(GraphPatterns, BarabasiAlbertHasHubs) {
  const std::vector<std::int64_t> degrees = row_counts(barabasi_albert(1000, 4, 2));
  EXPECT_GT(*std::max_element(degrees.begin(), degrees.end()), 60);
}

TEST(GraphPatterns, AreDrawnFromTheSeed) {
  EXPECT_EQ(watts_strogatz(64, 4, 0.3, 5), watts_strogatz(64, 4, 0.3, 5));
  EXPECT_NE(watts_strogatz(64, 4, 0.3, 5), watts_strogatz(64, 4, 0.3, 6));
  EXPECT_EQ(barabasi_albert(64, 3, 5), barabasi_albert(64, 3, 5));
  EXPECT_NE(barabasi_albert(64, 3, 5), barabasi_albert(64, 3, 6));
}

// Nodes of the shorter side; along the longer one lines 0 and 1 stand for node 0, and so on.
TEST(GraphPatterns, StretchAlongTheLongerSide) {
  EXPECT_EQ(pattern::watts_strogatz(32, 64, kBlock, 2, 0, 1),
            from_picture({"####..##", "######..", "..######", "##..####"}));
  EXPECT_EQ(pattern::watts_strogatz(40, 24, kBlock, 0, 0, 1),
            from_picture({"#..", "#..", ".#.", "..#", "..#"}));
  for (const std::int64_t longer : {17, 30, 64, 100}) {
    const BlockPattern graph = pattern::barabasi_albert(17 * 8, 17 * 8, kBlock, 3, 4);
    const BlockPattern wide = pattern::barabasi_albert(17 * 8, longer * 8, kBlock, 3, 4);
    EXPECT_EQ(wide, pattern::barabasi_albert(longer * 8, 17 * 8, kBlock, 3, 4).transposed());
    std::vector<bool> met(17, false);
    for (std::int64_t c = 0; c < longer; ++c) {
      // The node that a column stands for is the one in whose span its centre lies.
      const auto node =
          static_cast<std::int64_t>((static_cast<double>(c) + 0.5) * 17 / static_cast<double>(longer));
      met[static_cast<std::size_t>(node)] = true;
      for (std::int64_t r = 0; r < 17; ++r) ASSERT_EQ(wide.test(r, c), graph.test(r, node)) << r << ", " << c;
    }
    EXPECT_EQ(std::count(met.begin(), met.end(), true), 17);
  }
}

TEST(GraphPatterns, RefuseWhatIsNoGraph) {
  expect_error("pattern.watts_strogatz", {"k even", "3"}, [] { watts_strogatz(8, 3, 0.1, 0); });
  expect_error("pattern.watts_strogatz", {"8 nodes", "8"}, [] { watts_strogatz(8, 8, 0.1, 0); });
  expect_error("pattern.watts_strogatz", {"4 nodes", "got 4"},
               [] { pattern::watts_strogatz(64, 32, kBlock, 4, 0.1, 0); });
  expect_error("pattern.watts_strogatz", {"k even", "-2"}, [] { watts_strogatz(8, -2, 0.1, 0); });
  expect_error("pattern.watts_strogatz", {"p in [0, 1]", "1.5"}, [] { watts_strogatz(8, 2, 1.5, 0); });
  expect_error("pattern.barabasi_albert", {"m from 1", "0"}, [] { barabasi_albert(8, 0, 0); });
  expect_error("pattern.barabasi_albert", {"m from 1", "8"}, [] { barabasi_albert(8, 8, 0); });
  expect_error("pattern.barabasi_albert", {"4 nodes", "got 4"},
               [] { pattern::barabasi_albert(32, 64, kBlock, 4, 0); });
}

TEST(GraphPatterns, EveryGeneratorHasItsName) {
  const auto by_name = [](const char* name, std::vector<double> numbers, std::uint64_t seed = 9) {
    return pattern::generate(name, 64, 64, kBlock, numbers, seed);
  };
  EXPECT_EQ(by_name("random", {0.3}), pattern::random(64, 64, kBlock, 0.3, 9));
  EXPECT_EQ(by_name("balanced", {0.3}), pattern::balanced(64, 64, kBlock, 0.3, 9));
  EXPECT_EQ(by_name("biregular", {0.3}), pattern::biregular(64, 64, kBlock, 0.3, 9));
  EXPECT_EQ(by_name("banded", {1}), pattern::banded(64, 64, kBlock, 1));
  EXPECT_EQ(by_name("block_diagonal", {3}), pattern::block_diagonal(64, 64, kBlock, 3));
  EXPECT_EQ(by_name("watts_strogatz", {4, 0.2}), pattern::watts_strogatz(64, 64, kBlock, 4, 0.2, 9));
  EXPECT_EQ(by_name("barabasi_albert", {2}), pattern::barabasi_albert(64, 64, kBlock, 2, 9));
  EXPECT_EQ(by_name("block_diagonal", {3, 1}), pattern::block_diagonal(64, 64, kBlock, 3, true));
  EXPECT_EQ(pattern::generate("watts_strogatz_2d", 96, 96, kBlock, std::vector<double>{4, 0.2, 3}, 9),
            pattern::watts_strogatz_2d(96, 96, kBlock, 4, 0.2, 9, 3));
  EXPECT_EQ(by_name("strided", {3}), pattern::strided(64, 64, kBlock, 3));
  EXPECT_EQ(by_name("strided", {3, 1}), pattern::strided(64, 64, kBlock, 3, true));
  EXPECT_EQ(by_name("fixed", {3}), pattern::fixed(64, 64, kBlock, 3));
  EXPECT_EQ(by_name("fixed", {3, 2, 1}), pattern::fixed(64, 64, kBlock, 3, 2, true));
  EXPECT_EQ(by_name("butterfly", {}), pattern::butterfly(64, 64, kBlock));
  EXPECT_EQ(by_name("butterfly", {2}), pattern::butterfly(64, 64, kBlock, 2));
  EXPECT_EQ(by_name("expander", {4}), pattern::expander(64, 64, kBlock, 4, 9));
  // No cells: nothing is made of the 2^31 - 1 lines of the other side.
  constexpr std::int64_t kLong = 8 * ((std::int64_t{1} << 31) - 1);
  using Request = std::pair<const char*, std::vector<double>>;
  for (const auto& [name, numbers] : std::initializer_list<Request>{{"random", {0}},
                                                                    {"balanced", {1}},
                                                                    {"biregular", {1}},
                                                                    {"banded", {1}},
                                                                    {"watts_strogatz", {0, 0}},
                                                                    {"watts_strogatz_2d", {0, 0}},
                                                                    {"strided", {1}},
                                                                    {"fixed", {1}},
                                                                    {"butterfly", {}}}) {
    EXPECT_EQ(pattern::generate(name, 0, kLong, kBlock, numbers, 9), BlockPattern(0, kLong, kBlock)) << name;
    EXPECT_EQ(pattern::generate(name, kLong, 0, kBlock, numbers, 9), BlockPattern(kLong, 0, kBlock)) << name;
  }
  EXPECT_EQ(pattern::from_mask(kLong, 0, kBlock, {}), BlockPattern(kLong, 0, kBlock));
  expect_error("pattern.generate", {"barabasi_albert", "spiral"}, [&] { by_name("spiral", {1}); });
  for (const double wrong : {1.5, std::nan(""), 1e300})
    expect_error("pattern.generate", {"a whole number"}, [&] { by_name("banded", {wrong}); });
  expect_error("pattern.generate", {"k, p", "1 numbers"}, [&] { by_name("watts_strogatz", {1}); });
  expect_error("pattern.generate", {"factors", "2 numbers"}, [&] { by_name("butterfly", {1, 2}); });
}

}  // namespace
}  // namespace sparseloom
