// Hostile calls of the public C++ API, drawn by a seed: sizes, indices, dtypes, pointers, strides and
// workspaces that do not fit, whose memory is as large as they say. Each has to throw our Error or give the
// right numbers; never a report of a sanitizer, nor a touch of the page behind an operand.
// SPARSELOOM_HOSTILE="<first seed> <seeds>" runs others: tests/campaigns/cpp.py.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/bsr_conv/rows.h"
#include "ops/hostile_draw.h"
#include "sparseloom/sparseloom.h"
#include "sparseloom/sparsifiers.h"

namespace sparseloom {
namespace {

using hostile::Draw, hostile::exact, hostile::executor_of, hostile::expect_product, hostile::lines_of,
    hostile::Lists, hostile::Memory, hostile::operand, hostile::workspace;

void blocks(Draw& draw) {
  Memory memory;
  const Executor executor = executor_of(draw);
  static constexpr std::int32_t kSides[] = {8, 8, 16, 32, 64, 128}, kWrong[] = {0, -8, 24, 1 << 30};
  const auto side = [&] { return draw.chance(4) ? draw.pick(kWrong) : draw.pick(kSides); };
  const BlockShape block{side(), side()};
  const std::int64_t rows = draw.size(70), cols = draw.size(70);
  const Lists lists(draw, lines_of(rows, block.rows), lines_of(cols, block.cols));
  const std::int32_t* const crow = memory.array(lists.crow);
  const std::int32_t* const col = memory.array(lists.col);
  validate_index("hostile", rows, cols, block, {crow, lists.crow.size()}, {col, lists.col.size()});
  const IndexView index{rows, cols, block, static_cast<std::int64_t>(lists.col.size()), crow, col};
  const std::int64_t m = draw.size(20);
  const DType dtype = draw.dtype();
  static constexpr Direction kDirections[] = {Direction::forward, Direction::forward, Direction::dx,
                                              Direction::dw};
  Problem problem = describe(index, dtype, draw.pick(kDirections), m);
  problem.strict = draw.chance(10);
  if (draw.chance(5)) problem.blocks += draw.below(3) - 1;
  if (draw.chance(5)) problem.m = draw.number();
  if (draw.chance(5)) problem.rows = draw.number();
  problem.accumulate = draw.chance(5), problem.glu = draw.chance(3), problem.tf32 = draw.chance(5);
  problem.bias = draw.chance(10), problem.residual = draw.chance(10);
  static constexpr const char* kKernels[] = {"",    "", "", "reference", "dense", "avx2_panel", "avx2_decode",
                                             "none"};
  const auto plan = make_plan(problem, index, executor, draw.pick(kKernels));
  const MatrixView x = operand(draw, memory, dtype, m, cols), y = operand(draw, memory, dtype, m, rows);
  const std::int64_t elements = index.blocks * block.rows * block.cols;
  const MatrixView values = memory.matrix(draw, dtype, 1, elements);
  const std::span<std::byte> scratch = workspace(draw, memory, plan->workspace_bytes);
  if (problem.direction == Direction::forward) {
    const MatrixView bias = memory.matrix(draw, dtype, 1, rows),
                     residual = operand(draw, memory, dtype, m, rows);
    Addends addends(problem.bias ? bias.data : nullptr);
    if (problem.residual != draw.chance(3)) addends.residual = residual;
    linear(*plan, x, index, values.data, addends, y, scratch, executor);
    if (!exact(dtype) || problem.bias || problem.residual) return;
    const MatrixView dense = memory.matrix(draw, dtype, rows, cols);
    unpack(index, values.data, dense, executor);
    expect_product(x, dense, y);
  } else if (problem.direction == Direction::dx) {
    std::vector<std::int32_t> ccol(static_cast<std::size_t>(index.block_cols() + 1)), row(lists.col.size()),
        slot(lists.col.size());
    transpose_index(index, ccol.data(), row.data(), slot.data());
    const TransposedView transposed{memory.array(ccol), memory.array(row), memory.array(slot)};
    linear_dx(*plan, y, index, transposed, values.data, x, scratch, executor);
  } else {
    const MatrixView sums = memory.matrix(draw, problem.accumulate ? DType::f32 : dtype, 1, elements);
    linear_dw(*plan, y, x, index, sums.data, scratch, executor);
  }
}

void copies(Draw& draw) {
  Memory memory;
  const Executor executor = executor_of(draw);
  const BlockShape block{8, 16};
  const std::int64_t rows = draw.below(70), cols = draw.below(70);
  const Lists lists(draw, lines_of(rows, block.rows), lines_of(cols, block.cols));
  const std::int32_t* const crow = memory.array(lists.crow);
  const std::int32_t* const col = memory.array(lists.col);
  validate_index("hostile", rows, cols, block, {crow, lists.crow.size()}, {col, lists.col.size()});
  const IndexView index{rows, cols, block, static_cast<std::int64_t>(lists.col.size()), crow, col};
  const DType dtype = draw.dtype();
  const MatrixView dense = operand(draw, memory, dtype, rows, cols);
  const MatrixView values = memory.matrix(draw, dense.dtype, 1, index.blocks * block.rows * block.cols);
  if (draw.chance(50)) return pack(dense, index, values.data, executor);
  if (draw.chance(50)) return unpack(index, values.data, dense, executor);
  const std::int64_t grid = index.block_rows() * index.block_cols();
  auto* const scores = static_cast<float*>(memory.bytes(4 * grid));
  block_scores(dense, block, BlockNorm::l2, {scores, static_cast<std::size_t>(grid)});
}

/// Plans and runs a product of a layout whose index a validator has let through.
template <class L>
void layout_of(Draw& draw, Memory& memory, const typename L::View& view) {
  using Verb = LinearOf<L>;
  const Executor executor = executor_of(draw);
  L::validate("hostile", view);
  const std::int64_t m = draw.size(12);
  const DType dtype = draw.dtype();
  static constexpr Direction kDirections[] = {Direction::forward, Direction::forward, Direction::dx,
                                              Direction::dw};
  LinearProblem problem = Verb::describe(view, draw.pick(kDirections), dtype, m);
  if (draw.chance(5)) problem.m = draw.number();
  if (draw.chance(5)) problem.stored = draw.number();
  if (draw.chance(5)) problem.rows += draw.below(3) - 1;
  problem.bias = draw.chance(10), problem.strict = draw.chance(5);
  const auto plan = Verb::plan(problem, executor);
  if (problem.m != m || m > hostile::kMost) return;  // pointers say nothing of it
  const std::int64_t rows = L::rows(view), cols = L::cols(view), stored = L::stored(view);
  const MatrixView x = memory.matrix(draw, dtype, m, cols), y = memory.matrix(draw, dtype, m, rows);
  const MatrixView values = memory.matrix(draw, dtype, 1, stored), bias = memory.matrix(draw, dtype, 1, rows);
  MatmulArgs product;
  const bool forward = problem.direction == Direction::forward, dw = problem.direction == Direction::dw;
  product.a = forward ? x.data : y.data, product.a_stride = forward ? x.stride : y.stride;
  product.out = dw        ? values.data
                : forward ? y.data
                          : x.data,
  product.out_stride = forward ? y.stride : x.stride;
  if (dw) product.b = x.data, product.b_stride = x.stride;
  if (!dw) product.values = values.data;
  if (problem.bias != draw.chance(3)) product.bias = bias.data;
  if (draw.chance(3)) product.a = nullptr;
  if (draw.chance(3)) product.a_stride = std::min<std::int64_t>((forward ? cols : rows) - 1, draw.number());
  if (draw.chance(3)) product.out_stride = -1;
  Verb::run(*plan, product, view, workspace(draw, memory, plan->workspace_bytes), executor);
  if (!forward || !exact(dtype) || product.bias != nullptr || std::max(rows, cols) > hostile::kMost) return;
  const MatrixView dense = memory.matrix(draw, dtype, rows, cols);
  L::unpack(view, values.data, dense, 0, rows);
  expect_product(x, dense, y);
}

void layouts(Draw& draw) {
  Memory memory;
  const std::int64_t rows = draw.size(40), cols = draw.size(60);
  const bool small = rows >= 0 && rows <= 300 && cols >= 0 && cols <= 300;
  const auto bytes_of = [&](std::int64_t count, std::uint64_t mask) {
    std::vector<std::uint8_t> drawn(
        static_cast<std::size_t>(small ? std::clamp<std::int64_t>(count, 0, 90000) : 0));
    for (std::uint8_t& each : drawn) each = static_cast<std::uint8_t>(draw.bits() & mask);
    return drawn;
  };
  if (draw.chance(40)) {
    const Lists lists(draw, lines_of(rows, 1), lines_of(cols, 1));
    CsrView view;
    view.rows = rows, view.cols = cols, view.stored = static_cast<std::int64_t>(lists.col.size());
    if (std::ssize(lists.crow) - 1 == rows) view.crow = memory.array(lists.crow);
    view.col = memory.array(lists.col);
    return layout_of<Csr>(draw, memory, view);
  }
  if (!small) return;
  if (draw.chance(50)) {
    Semi24View view;
    view.rows = rows, view.cols = cols;
    // 0 and 1, 2 and 3, ...: valid nibbles mostly
    std::vector<std::uint8_t> positions = bytes_of(rows * view.position_bytes(), 0);
    for (std::uint8_t& each : positions)
      each = draw.chance(99) ? 0x44 : static_cast<std::uint8_t>(draw.bits());
    view.positions = memory.array(positions);
    return layout_of<Semi24>(draw, memory, view);
  }
  BitmapView view;
  view.rows = rows, view.cols = cols;
  std::vector<std::uint8_t> bits = bytes_of(rows * view.row_bytes(), 0xFF);
  std::vector<std::int32_t> crow{0};
  for (std::int64_t r = 0; r < rows; ++r) {
    std::int32_t count = 0;
    for (std::int64_t b = 0; b < view.row_bytes(); ++b) {
      std::uint8_t& byte = bits[static_cast<std::size_t>(r * view.row_bytes() + b)];
      const std::int64_t last = cols - 8 * b;
      if (last < 8 && !draw.chance(1)) byte &= static_cast<std::uint8_t>((1 << last) - 1);
      for (int bit = 0; bit < 8; ++bit) count += byte >> bit & 1;
    }
    crow.push_back(crow.back() + count);
  }
  view.stored = crow.back();
  if (draw.chance(20)) crow[static_cast<std::size_t>(draw.below(rows + 1))] += 1;
  if (draw.chance(5)) view.stored += draw.below(3) - 1;
  view.bits = memory.array(bits), view.crow = memory.array(crow);
  layout_of<Bitmap>(draw, memory, view);
}

/// n:m and n:m:g.
void nm(Draw& draw) {
  Memory memory;
  const std::int64_t rows = draw.size(40), cols = draw.size(60),
                     m = draw.chance(4) ? draw.number() : 1 + draw.below(8);
  const std::int64_t n = draw.chance(4) ? draw.number() : 1 + draw.below(std::clamp<std::int64_t>(m, 1, 8));
  const bool small = rows >= 0 && rows <= 300 && cols >= 0 && cols <= 300;
  if (draw.chance(50)) {
    NmView view{rows, cols, n, m, nullptr};
    if (small && n >= 1 && n <= m && m <= 256) {
      std::vector<std::uint8_t> positions(static_cast<std::size_t>(rows * view.groups() * n));
      for (std::size_t i = 0; i < positions.size(); ++i) {
        const auto place =
            static_cast<std::int64_t>(i) % n;  // ascending: somewhere between i and the last that fits
        const std::int64_t least = place == 0 ? 0 : positions[i - 1] + 1;
        positions[i] = static_cast<std::uint8_t>(least + draw.below(m - n + place - least + 1));
      }
      if (draw.chance(15) && !positions.empty())
        positions[static_cast<std::size_t>(draw.below(std::ssize(positions)))] =
            static_cast<std::uint8_t>(draw.bits());
      view.positions = memory.array(positions);
    }
    return layout_of<Nm>(draw, memory, view);
  }
  const std::int64_t g = draw.chance(4) ? draw.number() : 1 + draw.below(4);
  NmgView view = nmg_view("hostile", rows, cols, n, m, g);
  const std::int64_t groups = view.chunks() * view.strips(), chunk = view.chunk_rows();
  if (small && groups * chunk < 1 << 20) {
    std::vector<std::int16_t> order(static_cast<std::size_t>(groups * chunk));
    for (std::int64_t group = 0; group < groups; ++group)
      for (std::int64_t i = 0; i < chunk; ++i) {
        std::int16_t* const of = order.data() + group * chunk;
        of[i] = static_cast<std::int16_t>(i);
        std::swap(of[i], of[draw.below(i + 1)]);
      }
    if (draw.chance(15) && !order.empty())
      order[static_cast<std::size_t>(draw.below(std::ssize(order)))] = static_cast<std::int16_t>(draw.bits());
    view.order = memory.array(order);
  }
  if (draw.chance(3)) view.patterns += draw.below(3) - 1;
  if (draw.chance(2)) view.g = -view.g;
  if (draw.chance(2)) view.places = nullptr;
  layout_of<Nmg>(draw, memory, view);
}

void sparsifiers(Draw& draw) {
  Memory memory;
  const Executor executor = executor_of(draw);
  const std::int64_t rows = draw.below(40), cols = draw.below(60);
  const MatrixView dense = operand(draw, memory, draw.dtype(), rows, cols);
  if (draw.chance(40)) {
    const auto mask = static_cast<bool*>(
        memory.bytes(std::min<std::int64_t>(std::max<std::int64_t>(dense.rows, 0), 300) * dense.cols));
    static constexpr Semi24Pruning kPrunings[] = {Semi24Pruning::magnitude,
                                                  Semi24Pruning::transposable_greedy};
    return semi24_prune(dense, draw.pick(kPrunings), mask, executor);
  }
  SparsifierSpec spec;
  spec.selection = static_cast<Selection>(draw.below(6));
  static constexpr double kAmounts[] = {0, 0.3, 1, 1.5, -1, 1e300, std::numeric_limits<double>::quiet_NaN()};
  spec.amount = draw.pick(kAmounts);
  spec.block_rows = draw.chance(20) ? draw.number() : 1 + draw.below(9);
  spec.block_cols = draw.chance(20) ? draw.number() : 1 + draw.below(9);
  spec.n = draw.chance(20) ? draw.number() : 1 + draw.below(3);
  spec.m = draw.chance(20) ? draw.number() : 4;
  const std::int64_t count = std::min<std::int64_t>(std::max<std::int64_t>(dense.rows, 0), 300) * dense.cols;
  SparsifierResult result;
  if (draw.chance(80)) result.mask = static_cast<bool*>(memory.bytes(count));
  if (draw.chance(80)) result.values = memory.bytes(count * static_cast<std::int64_t>(size_of(dense.dtype)));
  sparsify(dense, spec, result, executor);
}

void patterns(Draw& draw) {
  static constexpr const char* kNames[] = {"random",
                                           "balanced",
                                           "biregular",
                                           "banded",
                                           "block_diagonal",
                                           "watts_strogatz",
                                           "watts_strogatz_2d",
                                           "barabasi_albert",
                                           "strided",
                                           "fixed",
                                           "butterfly",
                                           "expander",
                                           "none"};
  static constexpr std::int32_t kSides[] = {8, 16, 32, 64, 128}, kWrong[] = {0, -8, 1};
  const auto side = [&] { return draw.chance(4) ? draw.pick(kWrong) : draw.pick(kSides); };
  static constexpr double kArguments[] = {0,
                                          0.3,
                                          1,
                                          2,
                                          3,
                                          4,
                                          -1,
                                          1e18,
                                          1e300,
                                          0.5,
                                          std::numeric_limits<double>::infinity(),
                                          std::numeric_limits<double>::quiet_NaN()};
  std::vector<double> arguments(static_cast<std::size_t>(draw.below(4)));
  for (double& each : arguments) each = draw.pick(kArguments);
  // a grid of 2^62 cells is one that no memory has: sizes that are wrong, and small ones
  const auto size = [&] { return draw.chance(10) ? -draw.below(2) : 1 + draw.below(400); };
  const BlockPattern made =
      pattern::generate(draw.pick(kNames), size(), size(), {side(), side()}, arguments, draw.bits());
  const BlockIndex index(made);
  facts_of(index.view());
}

}  // namespace

TEST(HostileCalls, ThrowOurErrorOrAreRight) {
  std::int64_t first = 0, count = 1500;
  const char* const asked = std::getenv("SPARSELOOM_HOSTILE");
  if (asked != nullptr) {
    ASSERT_EQ(std::sscanf(asked, "%ld %ld", &first, &count), 2);
  }
  static constexpr std::pair<const char*, void (*)(Draw&)> kKinds[] = {
      {"blocks", blocks},
      {"copies", copies},
      {"layouts", layouts},
      {"sparsifiers", sparsifiers},
      {"patterns", patterns},
      {"attention", hostile::attention},
      {"convolutions", hostile::convolutions},
      {"gates", hostile::gates},
      {"recurrent", hostile::recurrent},
      {"unit_norms", hostile::unit_norms},
      {"nm", nm},
      {"eight_bits", hostile::eight_bits},
      {"packings", hostile::packings},
      {"prunings", hostile::prunings},
      {"topologies", hostile::topologies}};
  std::array<std::array<std::int64_t, 2>, std::size(kKinds)> done{};
  for (std::int64_t seed = first; seed < first + count; ++seed) {
    Draw draw(static_cast<std::uint64_t>(seed) * 0x9E3779B97F4A7C15u + 1);
    const auto kind = static_cast<std::size_t>(draw.chance(20) ? 0 : draw.below(std::size(kKinds)));
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + kKinds[kind].first);
    try {
      kKinds[kind].second(draw);
      ++done[kind][0];
    } catch (const Error&) {
      ++done[kind][1];
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    if (HasFatalFailure()) return;
  }
  for (std::size_t kind = 0; kind < std::size(kKinds); ++kind) {
    // On other machines than x86-64 no row computes a convolution.
    const bool none_right = kKinds[kind].second == hostile::convolutions && kernels::conv_cpu_rows().empty();
    EXPECT_TRUE(asked != nullptr || ((done[kind][0] > 0 || none_right) && done[kind][1] > 0))
        << kKinds[kind].first;
    if (asked != nullptr)
      std::printf("hostile %s %ld %ld\n", kKinds[kind].first, done[kind][0], done[kind][1]);
  }
}

}  // namespace sparseloom
