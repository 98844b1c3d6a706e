// Mixing, distances and the figures of small worlds: graphs whose figures are known, and those of the graphs
// that small-world LSTMs were built with (measured with networkx, 576 and 80 nodes).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/expect_error.h"
#include "pattern/pictures.h"
#include "sparseloom/pattern_graph.h"

namespace sparseloom {
namespace {

using pattern::mixing;
using pattern::small_world;
using pattern::SmallWorld;
using test::expect_error;
using test::from_picture;

constexpr BlockShape kBlock{8, 8};
constexpr std::int64_t kSize = 576 * 8;
using Draw = std::function<BlockPattern(std::uint64_t seed)>;

std::vector<double> mixing_of(const BlockPattern& pattern, std::int64_t steps = 0) {
  return mixing(std::vector<BlockPattern>{pattern}, steps);
}

struct Row {
  const char* name;
  Draw draw;
  double length, clustering, figure;  // figure 0: not in the table
  std::vector<double> mixing;         // percent, the last at which all is reached
};

/// Over `seeds` seeds: path length within 5 %, clustering within 10 %, the figure within 10 %, and mixing
/// within 3 points or a tenth.
void expect_row(const Row& row, int seeds) {
  SCOPED_TRACE(row.name);
  SmallWorld sum;
  std::vector<double> mixed(row.mixing.size());
  for (int seed = 0; seed < seeds; ++seed) {
    const BlockPattern drawn = row.draw(static_cast<std::uint64_t>(seed));
    const SmallWorld found = small_world(drawn);
    sum.path_length += found.path_length / seeds;
    sum.clustering += found.clustering / seeds;
    sum.figure += found.figure / seeds;
    const std::vector<double> shares = mixing_of(drawn, static_cast<std::int64_t>(mixed.size()));
    for (std::size_t t = 0; t < mixed.size(); ++t) mixed[t] += 100 * shares[t] / seeds;
  }
  EXPECT_NEAR(sum.path_length, row.length, 0.05 * row.length);
  EXPECT_NEAR(sum.clustering, row.clustering, 0.1 * row.clustering);
  if (row.figure > 0) {
    EXPECT_NEAR(sum.figure, row.figure, 0.1 * row.figure);
  }
  for (std::size_t t = 0; t < mixed.size(); ++t)
    EXPECT_NEAR(mixed[t], row.mixing[t], std::min(3.0, 0.1 * row.mixing[t])) << "step " << t + 1;
}

Draw ring(std::int64_t size, std::int64_t k, double p) {
  return [=](std::uint64_t seed) { return pattern::watts_strogatz(size, size, kBlock, k, p, seed); };
}

TEST(SmallWorldTable, WattsStrogatz) {
  expect_row({"20 %", ring(kSize, 16, 0.2), 2.93, 0.370, 10.4, {3, 19.6, 85, 100}}, 5);
  expect_row({"5 %", ring(kSize, 16, 0.05), 3.53, 0.592, 0, {3}}, 5);
  expect_row({"all", ring(kSize, 16, 1), 2.60, 0.025, 0.8, {3}}, 5);
  // networkx's means over 200 seeds; clustering of one such graph scatters by .036.
  expect_row({"80 nodes", ring(640, 4, 0.2), 3.94, 0.280, 0, {}}, 100);
}

TEST(SmallWorldTable, BarabasiAlbert) {
  const Draw hubs = [](std::uint64_t seed) {
    return pattern::barabasi_albert(kSize, kSize, kBlock, 8, seed);
  };
  expect_row({"576 nodes", hubs, 2.52, 0.079, 0, {2.9, 45, 99.8, 100}}, 5);
  const SmallWorld found = small_world(hubs(1));
  EXPECT_EQ(found.degree_min, 8);
  EXPECT_NEAR(static_cast<double>(found.degree_max), 108, 15);
  EXPECT_EQ(found.edges, 8 * (576 - 8) + 28);
  const Draw small = [](std::uint64_t seed) { return pattern::barabasi_albert(640, 640, kBlock, 2, seed); };
  // Clustering of one such graph scatters by 30 %.
  expect_row({"80 nodes", small, 2.94, 0.148, 0, {}}, 100);
  int steps = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    steps = std::max(steps, static_cast<int>(mixing_of(small(seed)).size()));
  EXPECT_EQ(steps, 6);
}

TEST(SmallWorldTable, BiregularAndBanded) {
  const Draw even = [](std::uint64_t seed) {
    return pattern::biregular(kSize, kSize, kBlock, 17.0 / 576, seed);
  };
  expect_row({"biregular", even, 2.07, 0.056, 0, {3, 40, 100}}, 5);
  const Draw expander = [](std::uint64_t seed) { return pattern::expander(kSize, kSize, kBlock, 17, seed); };
  expect_row({"expander", expander, 2.07, 0.056, 0, {3, 40, 100}}, 5);
  EXPECT_NEAR(small_world(pattern::banded(kSize, kSize, kBlock, 8)).path_length, 24.5, 0.05);
}

// A ring of n nodes with k neighbours: distance d takes ceil(d / (k / 2)) steps, and 3 (k - 2) / (4 (k - 1))
// of a node's neighbours are joined (Newman 2010, 15.1).
TEST(SmallWorldTable, RingExactly) {
  const BlockPattern made = ring(kSize, 16, 0)(0);
  const SmallWorld found = small_world(made);
  double steps = 288 / 8;  // the node opposite
  for (int distance = 1; distance < 288; ++distance) steps += 2 * std::ceil(distance / 8.0);
  EXPECT_DOUBLE_EQ(found.path_length, steps / 575);
  EXPECT_NEAR(found.path_length, 18.5, 0.05);
  EXPECT_NEAR(found.clustering, 0.7, 1e-12);
  EXPECT_EQ(found.diameter, 36);
  const std::vector<double> mixed = mixing_of(made);
  ASSERT_EQ(mixed.size(), 36u);
  for (std::size_t t = 0; t < 35; ++t)
    EXPECT_DOUBLE_EQ(mixed[t], (1 + 16 * static_cast<double>(t + 1)) / 576) << t;
  EXPECT_NEAR(mixed[8], 0.25, 0.005);
  EXPECT_EQ(mixed.back(), 1);
}

// Steps reach the nodes whose numbers differ in so many bits.
TEST(SmallWorldTable, ButterflyExactly) {
  const BlockPattern made = pattern::butterfly(4096, 4096, kBlock);
  EXPECT_DOUBLE_EQ(made.stats().block_density, 10.0 / 512);
  const SmallWorld found = small_world(made);
  EXPECT_EQ(found.diameter, 9);
  EXPECT_EQ(found.clustering, 0);
  EXPECT_DOUBLE_EQ(found.path_length, 9 * 256 / 511.0);
  const std::vector<double> mixed = mixing_of(made);
  ASSERT_EQ(mixed.size(), 9u);
  double nodes = 1, within = 1;
  for (int bits = 1; bits <= 9; ++bits) {
    nodes = nodes * (10 - bits) / bits;
    within += nodes;
    EXPECT_DOUBLE_EQ(mixed[static_cast<std::size_t>(bits - 1)], within / 512);
  }
}

TEST(SmallWorldTable, PathsGrowWithTheLogarithm) {
  double last = 0;
  for (const std::int64_t nodes : {128, 256, 512, 1024}) {
    const double length = small_world(ring(nodes * 8, 8, 0.3)(1)).path_length;
    if (last > 0) {  // a ring's would double
      EXPECT_NEAR(length - last, std::log(2) / std::log(8), 0.3) << nodes;
    }
    last = length;
  }
}

TEST(SmallWorldFigures, OfGraphsThatAreKnown) {
  const SmallWorld full = small_world(pattern::full(80, 80, kBlock));
  EXPECT_EQ(full.nodes, 10);
  EXPECT_EQ(full.edges, 45);
  EXPECT_EQ(full.path_length, 1);
  EXPECT_EQ(full.clustering, 1);
  EXPECT_EQ(full.degree_min, 9);
  // A path of three nodes, written with one block for each edge: the graph has both directions.
  const SmallWorld path = small_world(from_picture({".#.", "...", ".#."}));
  EXPECT_EQ(path.edges, 2);
  EXPECT_DOUBLE_EQ(path.path_length, 4.0 / 3);
  EXPECT_EQ(path.diameter, 2);
  EXPECT_EQ(path.clustering, 0);
  EXPECT_DOUBLE_EQ(path.degree_mean, 4.0 / 3);
  const SmallWorld apart = small_world(pattern::block_diagonal(64, 64, kBlock, 2));
  EXPECT_TRUE(std::isinf(apart.path_length) && std::isinf(apart.diameter));
  EXPECT_EQ(apart.clustering, 1);
  EXPECT_EQ(apart.figure, 0);
  EXPECT_EQ(small_world(BlockPattern(0, 0, kBlock)).nodes, 0);
  EXPECT_EQ(small_world(pattern::full(8, 8, kBlock)).path_length, 0);
  expect_error("pattern.small_world", {"one graph", "[4, 8]"},
               [] { small_world(pattern::full(32, 64, kBlock)); });
}

TEST(Mixing, FollowsThePatternsInTurn) {
  // From the columns of the first to the rows of the last, around again where more steps are asked for.
  const std::vector<BlockPattern> patterns = {from_picture({"#..", ".##"}), from_picture({"#.", "##", ".."})};
  EXPECT_EQ(mixing(patterns), (std::vector<double>{3.0 / 6, 4.0 / 9}));
  EXPECT_EQ(mixing(patterns, 1), (std::vector<double>{3.0 / 6}));
  EXPECT_EQ(mixing(patterns, 4), (std::vector<double>{3.0 / 6, 4.0 / 9, 4.0 / 6, 4.0 / 9}));
  EXPECT_EQ(mixing_of(pattern::full(80, 64, kBlock), 1), std::vector<double>{1});
}

TEST(Mixing, OfOnePatternEndsWhereNothingIsAdded) {
  EXPECT_EQ(mixing_of(pattern::block_diagonal(64, 64, kBlock, 2)), std::vector<double>{0.5});
  EXPECT_EQ(mixing_of(BlockPattern(64, 64, kBlock)), std::vector<double>{0});
  EXPECT_EQ(mixing_of(from_picture({".#", "#."})), std::vector<double>{0.5});
  EXPECT_EQ(mixing_of(pattern::full(64, 64, kBlock), 3), (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(mixing_of(BlockPattern(0, 0, kBlock)), std::vector<double>{0});
}

TEST(Mixing, AShuffleJoinsWhatGroupsKeepApart) {
  const BlockPattern plain = pattern::block_diagonal(kSize, kSize, kBlock, 24);
  const BlockPattern shuffled = pattern::block_diagonal(kSize, kSize, kBlock, 24, true);
  EXPECT_EQ(mixing(std::vector{plain, plain}), (std::vector<double>{1.0 / 24, 1.0 / 24}));
  EXPECT_EQ(mixing(std::vector{plain, shuffled}), (std::vector<double>{1.0 / 24, 1}));
}

TEST(Mixing, RefusesPatternsThatDoNotFollow) {
  const auto of = [](std::vector<BlockPattern> patterns, std::int64_t steps = 0) {
    return [=] { mixing(patterns, steps); };
  };
  expect_error("pattern.mixing", {"at least one"}, of({}));
  expect_error("pattern.mixing", {"0 to 1000000 steps", "got -1"}, of({pattern::full(64, 64, kBlock)}, -1));
  expect_error("pattern.mixing", {"pattern 1", "64 features", "32 in blocks of 8"},
               of({pattern::full(64, 64, kBlock), pattern::full(32, 32, kBlock)}));
  expect_error("pattern.mixing", {"pattern 1", "blocks of 8", "64 in blocks of 16"},
               of({pattern::full(64, 64, kBlock), pattern::full(64, 64, {16, 16})}));
  expect_error("pattern.mixing", {"pattern 0", "80 features"}, of({pattern::full(80, 64, kBlock)}));
  const std::vector<BlockPattern> there = {pattern::full(80, 64, kBlock), pattern::full(96, 80, kBlock)};
  EXPECT_EQ(mixing(there), (std::vector<double>{1, 1}));
  expect_error("pattern.mixing", {"pattern 0", "96 features"}, of(there, 3));
}

TEST(Distances, AreThoseOfSignals) {
  const BlockPattern chain = from_picture({"#...", "##..", ".##.", "...#"});  // 0 -> 1 -> 2, and 3 alone
  EXPECT_EQ(pattern::distances(chain, 0), (std::vector<std::int64_t>{0, 1, 2, -1}));
  EXPECT_EQ(pattern::distances(chain, 2), (std::vector<std::int64_t>{-1, -1, 0, -1}));
  const BlockPattern world = ring(kSize, 8, 0.1)(3);
  std::int64_t near = 0;
  const std::vector<std::int64_t> steps = pattern::distances(world, 100);
  for (const std::int64_t each : steps) near += each <= 2;
  double all = 0;
  for (std::int64_t start = 0; start < 576; ++start) {
    for (const std::int64_t each : pattern::distances(world, start)) all += static_cast<double>(each);
  }
  EXPECT_DOUBLE_EQ(small_world(world).path_length, all / (576.0 * 575));
  EXPECT_GT(near, 9);
  expect_error("pattern.distances", {"576 blocks", "got 576"}, [&] { pattern::distances(world, 576); });
  expect_error("pattern.distances", {"got -1"}, [&] { pattern::distances(world, -1); });
  expect_error("pattern.distances", {"one graph"},
               [] { pattern::distances(pattern::full(32, 64, kBlock), 0); });
}

}  // namespace
}  // namespace sparseloom
