// Hostile calls of what makes and moves weights: 8-bit products, packing, one-shot pruning and topologies.
#include <cmath>

#include "ops/hostile_draw.h"
#include "sparseloom/sparseloom.h"

namespace sparseloom::hostile {
namespace {

constexpr DType kOut[] = {DType::f32, DType::f32, DType::bf16, DType::f16};

/// One factor of 1, one for each of so many, or seldom another number of them, or others than 1.
std::vector<float> scales(Draw& draw, std::int64_t each) {
  std::vector<float> made(static_cast<std::size_t>(draw.chance(3)    ? draw.below(4)
                                                   : draw.chance(50) ? each
                                                                     : 1),
                          1.f);
  if (draw.chance(5) && !made.empty()) made[0] = draw.chance(50) ? NAN : INFINITY;
  return made;
}

bool all_one(const std::vector<float>& factors) {
  return std::all_of(factors.begin(), factors.end(), [](float each) { return each == 1; });
}

/// Requires y = x W^T of int8 operands with factors of 1.
void expect_int8(const ConstMatrixView& x, const ConstMatrixView& w, const ConstMatrixView& y) {
  const auto of = [](const ConstMatrixView& m, std::int64_t row, std::int64_t i) {
    return int{static_cast<const std::int8_t*>(m.data)[row * m.stride + i]};
  };
  for (std::int64_t t = 0; t < y.rows; ++t)
    for (std::int64_t o = 0; o < y.cols; ++o) {
      int sum = 0;
      for (std::int64_t i = 0; i < x.cols; ++i) sum += of(x, t, i) * of(w, o, i);
      ASSERT_EQ(at(y, t, o), sum) << t << ", " << o;
    }
}

void bsr_of_8_bits(Draw& draw) {
  Memory memory;
  const Executor executor = executor_of(draw);
  static constexpr std::int32_t kSides[] = {8, 16, 32, 64};
  const BlockShape block{draw.pick(kSides), draw.pick(kSides)};
  const std::int64_t rows = draw.size(70), cols = draw.size(70), m = draw.size(20);
  const Lists lists(draw, lines_of(rows, block.rows), lines_of(cols, block.cols));
  const std::int32_t* const crow = memory.array(lists.crow);
  const std::int32_t* const col = memory.array(lists.col);
  validate_index("hostile", rows, cols, block, {crow, lists.crow.size()}, {col, lists.col.size()});
  const IndexView index{rows, cols, block, std::ssize(lists.col), crow, col};
  const DType dtype = draw.chance(90) ? DType::i8 : draw.dtype();
  ScaledProblem problem = describe_scaled(index, dtype, draw.pick(kOut), m);
  problem.bias = draw.chance(20), problem.strict = draw.chance(10);
  if (draw.chance(5)) problem.m = draw.number();
  if (draw.chance(5)) problem.cols = draw.number();
  const auto plan = make_plan(problem, index, executor);
  const MatrixView x = operand(draw, memory, dtype, m, cols), y = operand(draw, memory, problem.out, m, rows);
  const MatrixView values = memory.matrix(draw, dtype, 1, index.blocks * index.block_elements()),
                   bias = memory.matrix(draw, problem.out, 1, rows);
  const std::vector<float> of_x = scales(draw, std::clamp<std::int64_t>(m, 0, 300)),
                           of_w = scales(draw, std::clamp<std::int64_t>(rows, 0, 300));
  linear(*plan, x, index, values.data, {{memory.array(of_x), of_x.size()}, {memory.array(of_w), of_w.size()}},
         problem.bias != draw.chance(3) ? bias.data : nullptr, y,
         workspace(draw, memory, plan->workspace_bytes), executor);
  if (dtype != DType::i8 || problem.out != DType::f32 || problem.bias || !all_one(of_x) || !all_one(of_w))
    return;
  const MatrixView dense = memory.matrix(draw, dtype, rows, cols);
  unpack(index, values.data, dense, executor);
  expect_int8(x, dense, y);
}

void semi24_of_8_bits(Draw& draw) {
  Memory memory;
  const Executor executor = executor_of(draw);
  const std::int64_t rows = draw.size(40), cols = draw.size(60), m = draw.size(12);
  Semi24View view;
  view.rows = rows, view.cols = cols;
  const bool small = rows >= 0 && rows <= 300 && cols >= 0 && cols <= 300;
  std::vector<std::uint8_t> positions(static_cast<std::size_t>(small ? rows * view.position_bytes() : 0),
                                      0x44);
  for (std::size_t i = 0; i < positions.size(); ++i)  // the half behind an odd number of groups is zero
    if (view.groups() % 2 == 1 && static_cast<std::int64_t>(i + 1) % view.position_bytes() == 0)
      positions[i] = 4;
  if (draw.chance(15) && !positions.empty())
    positions[static_cast<std::size_t>(draw.below(std::ssize(positions)))] =
        static_cast<std::uint8_t>(draw.bits());
  view.positions = memory.array(positions);
  Semi24::validate("hostile", view);
  const DType dtype = draw.chance(90) ? DType::i8 : draw.dtype();
  ScaledLinearProblem problem = Semi24Scaled::describe(view, dtype, draw.pick(kOut), m);
  problem.bias = draw.chance(20), problem.strict = draw.chance(5);
  if (draw.chance(5)) problem.m = draw.number();
  if (draw.chance(5)) problem.stored = draw.number();
  const auto plan = Semi24Scaled::plan(problem, executor);
  if (problem.m != m || !small || m > kMost) return;
  const MatrixView x = memory.matrix(draw, dtype, m, cols), y = memory.matrix(draw, problem.out, m, rows),
                   values = memory.matrix(draw, dtype, 1, Semi24::stored(view)),
                   bias = memory.matrix(draw, problem.out, 1, rows);
  std::vector<float> of_x(static_cast<std::size_t>(draw.chance(50) ? m : 1), 1.f),
      of_w(static_cast<std::size_t>(draw.chance(50) ? rows : 1), 1.f);
  MatmulArgs product;
  product.a = draw.chance(2) ? nullptr : x.data, product.a_stride = draw.chance(2) ? -1 : x.stride;
  product.values = values.data, product.out = y.data, product.out_stride = draw.chance(2) ? 0 : y.stride;
  if (problem.bias != draw.chance(3)) product.bias = bias.data;
  product.a_scale = draw.chance(2) ? nullptr : memory.array(of_x), product.w_scale = memory.array(of_w);
  product.a_scale_each = of_x.size() > 1, product.w_scale_each = of_w.size() > 1;
  Semi24Scaled::run(*plan, product, view, workspace(draw, memory, plan->workspace_bytes), executor);
  if (dtype != DType::i8 || problem.out != DType::f32 || problem.bias) return;
  const MatrixView dense = memory.matrix(draw, dtype, rows, cols);
  Semi24::unpack(view, values.data, dense, 0, rows);
  expect_int8(x, dense, y);
}

/// A weight's size that may be wrong, with memory where it is small.
struct Weight {
  std::int64_t rows, cols;
  bool small;
  explicit Weight(Draw& draw)
      : rows(draw.size(40)),
        cols(draw.size(40)),
        small(rows >= 0 && rows <= 300 && cols >= 0 && cols <= 300) {}
};

}  // namespace

void eight_bits(Draw& draw) {
  if (draw.chance(45)) return bsr_of_8_bits(draw);
  if (draw.chance(80)) return semi24_of_8_bits(draw);
  Memory memory;
  const MatrixView x = operand(draw, memory, draw.dtype(), draw.below(20), draw.below(70));
  if (x.rows > 300 && x.cols == 0) return;  // one factor a row: nobody has that memory
  const float given = draw.chance(50) ? 0.5f : NAN;
  const QuantizedRows out{
      static_cast<std::int8_t*>(memory.bytes(std::clamp<std::int64_t>(x.rows, 0, 300) * x.cols)),
      static_cast<float*>(memory.bytes(4 * std::clamp<std::int64_t>(x.rows, 0, 300)))};
  quantize_rows(x, draw.chance(30) ? &given : nullptr, out, executor_of(draw));
}

/// Dense weights to and from n:m, n:m:g, 2:4 and the blocks of convolutions; what was packed is unpacked.
void packings(Draw& draw) {
  Memory memory;
  const Executor executor = executor_of(draw);
  const Weight size(draw);
  const DType dtype = draw.dtype();
  const MatrixView dense =
      operand(draw, memory, dtype, size.small ? size.rows : 0, size.small ? size.cols : 0);
  const MatrixView back = operand(draw, memory, dtype, dense.rows, dense.cols);
  if (size_of(back.dtype) != size_of(dense.dtype)) return;  // the values below are too short for it
  const auto element = static_cast<std::int64_t>(size_of(dense.dtype));
  const std::int64_t m = draw.chance(3) ? draw.number() : 1 + draw.below(8),
                     n = draw.chance(3) ? draw.number() : 1 + draw.below(4);
  const bool fits = size.small && m >= 1 && m <= 256 && n >= 1 && n <= m;
  switch (draw.below(4)) {
    case 0: {
      NmView view{size.rows, size.cols, n, m, nullptr};
      auto* const positions = static_cast<std::uint8_t*>(memory.bytes(fits ? Nm::stored(view) : 0));
      auto* const mask = static_cast<bool*>(memory.bytes(size.small ? size.rows * size.cols : 0));
      for (std::int64_t i = 0; size.small && i < size.rows * size.cols; ++i) mask[i] = draw.chance(20);
      nm_positions(mask, view, positions, executor);
      view.positions = positions;
      if (draw.chance(10) && positions != nullptr)
        positions[draw.below(Nm::stored(view))] = static_cast<std::uint8_t>(draw.bits());
      void* const values = memory.bytes(fits ? Nm::stored(view) * element : 0);
      nm_pack(dense, view, values, executor);
      return nm_unpack(view, values, back, executor);
    }
    case 1: {
      NmgView view =
          nmg_view("hostile", size.rows, size.cols, n, m, draw.chance(3) ? draw.number() : 1 + draw.below(3));
      if (!size.small || Nmg::stored(view) > 1 << 20) return;
      auto* const order = static_cast<std::int16_t*>(memory.bytes(2 * Nmg::stored(view) / n));
      nmg_order(dense, view, order, executor);
      view.order = order;
      if (draw.chance(10) && order != nullptr)
        order[draw.below(Nmg::stored(view) / n)] = static_cast<std::int16_t>(draw.bits());
      void* const values = memory.bytes(Nmg::stored(view) * element);
      nmg_pack(dense, view, values, executor);
      return nmg_unpack(view, values, back, executor);
    }
    case 2: {
      Semi24View view;
      view.rows = dense.rows, view.cols = dense.cols;
      const std::int64_t rows = std::clamp<std::int64_t>(dense.rows, 0, 300);
      auto* const positions = static_cast<std::uint8_t*>(memory.bytes(rows * view.position_bytes()));
      void* const values = memory.bytes(rows * view.row_values() * element);
      if (draw.chance(50)) {
        const Semi24Compressed out{values, positions,
                                   static_cast<std::uint8_t*>(memory.bytes(rows * ((dense.cols + 7) / 8)))};
        semi24_compress(dense, Semi24Pruning::magnitude, out, executor);
      } else {
        semi24_pack(dense, values, positions, executor);
      }
      view.positions = positions;
      if (draw.chance(10) && positions != nullptr)
        positions[draw.below(rows * view.position_bytes())] = static_cast<std::uint8_t>(draw.bits());
      return semi24_unpack(view, values, back, executor);
    }
    default: {
      const BlockShape block{8, 16};
      const std::int64_t taps = draw.chance(5) ? draw.number() : 1 + draw.below(3);
      const std::int64_t cols = taps >= 1 && taps <= 3 ? dense.cols / taps : dense.cols;
      const Lists lists(draw, lines_of(dense.rows, block.rows), lines_of(cols, block.cols));
      if (std::ssize(lists.crow) != lines_of(dense.rows, block.rows) + 1 || dense.rows > 300) return;
      const IndexView index{
          dense.rows, cols, block, std::ssize(lists.col), memory.array(lists.crow), memory.array(lists.col)};
      void* const values =
          memory.bytes(taps >= 1 && taps <= 3 ? index.blocks * taps * index.block_elements() * element : 0);
      conv_pack(dense, index, taps, values, executor);
      return conv_unpack(index, taps, values, back, executor);
    }
  }
}

void prunings(Draw& draw) {
  Memory memory;
  const Executor executor = executor_of(draw);
  const Weight size(draw);
  const auto floats = [&](std::int64_t rows, std::int64_t cols) -> float* {
    if (!size.small || draw.chance(1)) return nullptr;
    return static_cast<float*>(memory.matrix(draw, DType::f32, 1, rows * cols).data);
  };
  const std::int64_t m = draw.chance(5) ? draw.number() : draw.below(9),
                     n = draw.chance(5) ? draw.number() : draw.below(m < 1 ? 1 : m);
  auto* const mask = static_cast<bool*>(memory.bytes(size.small ? size.rows * size.cols : 0));
  switch (draw.below(4)) {
    case 0: {
      ColumnSweep sweep{
          size.rows, size.cols, floats(size.rows, size.cols), size.cols, floats(size.cols, size.cols),
          size.cols, mask,      floats(size.rows, size.cols), n,         m};
      if (draw.chance(5)) sweep.stride = draw.number();
      if (sweep.stride > size.cols) return;  // longer rows than memory has
      sweep.grid = static_cast<SweepGrid>(draw.below(draw.chance(5) ? 5 : 3));
      std::vector<std::int32_t> pins(static_cast<std::size_t>(size.small ? size.rows : 0));
      for (std::int32_t& each : pins)
        each = static_cast<std::int32_t>(draw.chance(20) ? draw.number() : draw.below(40));
      if (draw.chance(95)) sweep.tops = floats(size.rows, 1), sweep.pins = memory.array(pins);
      return column_sweep(sweep, executor);
    }
    case 1:
      swap_pairs({size.rows, size.cols, floats(size.rows, size.cols), floats(size.rows, size.cols),
                  floats(size.cols, size.cols), mask, m, draw.chance(5) ? draw.number() : draw.below(5)},
                 executor);
      return;
    case 2: {
      const MatrixView w = operand(draw, memory, draw.dtype(), draw.below(20), draw.below(30));
      const std::vector<std::int64_t> order =
          semi24_channel_order(w, draw.chance(5) ? draw.number() : 1, executor);
      ASSERT_EQ(std::ssize(order), w.cols);
      return;
    }
    default: {
      const std::int64_t tokens = draw.below(12);
      const DType dtype = draw.dtype();
      const MatrixView dy = operand(draw, memory, dtype, tokens, draw.below(40)),
                       x = operand(draw, memory, dtype, tokens, draw.below(40));
      static constexpr std::int32_t kSides[] = {8, 16, 32, 64, 8, 16, 7, 0};
      const BlockShape block{draw.pick(kSides), draw.pick(kSides)};
      const std::int64_t cells =
          lines_of(dy.cols, block.rows) * lines_of(x.cols, block.cols) + (draw.chance(3) ? 1 : 0);
      auto* const norms = static_cast<float*>(memory.bytes(4 * cells));
      const auto norm = static_cast<BlockNorm>(draw.below(draw.chance(5) ? 5 : 3));
      return block_gradient_norms(
          dy, x, block, norm, {norms, static_cast<std::size_t>(cells)},
          workspace(draw, memory, block_gradient_norms_workspace(dy, x, block, executor)), executor);
    }
  }
}

void topologies(Draw& draw) {
  Memory memory;
  const Executor executor = executor_of(draw);
  const std::int64_t rows = draw.chance(3) ? draw.number() : draw.below(6),
                     cols = draw.chance(3) ? draw.number() : draw.below(6);
  const bool small = rows >= 0 && rows <= 7 && cols >= 0 && cols <= 7;
  const std::int64_t cells = small ? rows * cols : 0,
                     capacity = draw.chance(3) ? draw.number() : draw.below(cells + 1);
  const auto list = [&](std::int64_t count) {
    return static_cast<std::int32_t*>(
        memory.bytes(small && capacity >= 0 && capacity <= cells && !draw.chance(1) ? 4 * count : 0));
  };
  TopologyTables tables{rows,           cols,
                        capacity,       list(small ? rows + 1 : 0),
                        list(capacity), list(small ? cols + 1 : 0),
                        list(capacity), list(capacity),
                        list(capacity), list(1)};
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(cells));
  for (std::uint8_t& each : mask) each = draw.chance(40);
  std::uint8_t* const cellwise = memory.array(mask);
  std::int32_t* const flags = list(1);
  const auto blank = [&] { return workspace(draw, memory, set_topology_workspace(tables, executor)); };
  const auto damage = [&](std::int32_t* of, std::int64_t count) {
    if (draw.chance(10) && of != nullptr && count > 0)
      of[draw.below(count)] = static_cast<std::int32_t>(draw.number());
  };
  set_topology(cellwise, tables, blank(), executor);
  damage(tables.crow, small ? rows + 1 : 0), damage(tables.col, capacity),
      damage(tables.ccol, small ? cols + 1 : 0), damage(tables.slot, capacity);
  update_topology(cellwise, tables, flags, blank(), executor);
  damage(tables.crow, small ? rows + 1 : 0), damage(tables.col, capacity), damage(tables.moved, capacity);
  const std::int64_t bytes = draw.chance(3) ? draw.number() : 32;
  void* const values = memory.bytes(bytes == 32 ? capacity * bytes : 0);
  if (bytes == 32 || capacity == 0)
    move_blocks(values, bytes, {tables.moved, static_cast<std::size_t>(capacity)},
                workspace(draw, memory, static_cast<std::size_t>(bytes == 32 ? capacity * bytes : 0)),
                executor);
  damage(tables.crow, small ? rows + 1 : 0);
  if (bytes == 32) clear_free_blocks(values, bytes, tables.crow + (small ? rows : 0), capacity, executor);
  BlockChoice choice{rows, cols, capacity, tables.crow, tables.col};
  const MatrixView scores = memory.matrix(draw, DType::f32, 1, capacity),
                   growth = memory.matrix(draw, DType::f32, 1, cells);
  static constexpr double kBudgets[] = {0, 1, 5, 1e18, -1, NAN, INFINITY},
                          kShares[] = {0, 0.3, 1, 2, -1, NAN};
  const std::vector<double> budget{draw.pick(kBudgets), draw.pick(kShares)};
  choice.scores = static_cast<const float*>(scores.data), choice.budget = memory.array(budget);
  if (draw.chance(80)) choice.growth = static_cast<const float*>(growth.data);
  choose_blocks(choice, cellwise, flags, executor);
}

}  // namespace sparseloom::hostile
