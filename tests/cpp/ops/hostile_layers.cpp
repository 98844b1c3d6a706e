// Hostile calls of what layers other than linear ones are made of: convolutions, gates, recurrent
// cells and their norms.
#include <cmath>

#include "ops/hostile_draw.h"
#include "sparseloom/conv_ops.h"
#include "sparseloom/gates.h"
#include "sparseloom/packed_index.h"
#include "sparseloom/recurrent.h"
#include "sparseloom/unit_norm.h"

namespace sparseloom::hostile {
void convolutions(Draw& draw) {
  Memory memory;
  const Executor executor = executor_of(draw);
  static constexpr std::int32_t kSides[] = {8, 8, 16, 32};
  const BlockShape block{draw.pick(kSides), draw.pick(kSides)};
  const std::int64_t rows = draw.size(40), cols = draw.size(40);
  std::vector<ConvWindow> axes(static_cast<std::size_t>(draw.chance(2) ? draw.below(6) : 1 + draw.below(3)));
  for (ConvWindow& axis : axes) {
    axis = {3 + draw.below(5), 1 + draw.below(3), 1 + draw.below(3), draw.below(3), 1 + draw.below(2)};
    std::int64_t* const numbers[] = {&axis.in, &axis.kernel, &axis.stride, &axis.padding, &axis.dilation};
    if (draw.chance(2)) *draw.pick(numbers) = draw.number();
    if (draw.chance(1)) axis.in = (1 << 30) - 1;
  }
  const std::int64_t images = draw.chance(3) ? draw.number() : draw.below(3);
  const ConvShape shape = conv_shape("hostile", images, axes);
  const Lists lists(draw, lines_of(rows, block.rows), lines_of(cols, block.cols));
  const std::int32_t* const crow = memory.array(lists.crow);
  const std::int32_t* const col = memory.array(lists.col);
  if (draw.chance(90))
    validate_index("hostile", rows, cols, block, {crow, lists.crow.size()}, {col, lists.col.size()});
  else if (std::ssize(lists.crow) != (rows < 0 || rows > 300 ? 0 : lines_of(rows, block.rows)) + 1)
    return;  // too short for its sizes
  if (rows < 0 || rows > 300 || cols < 0 || cols > 300) return;
  const IndexView index{rows, cols, block, static_cast<std::int64_t>(lists.col.size()), crow, col};
  const DType dtype = draw.chance(70) ? DType::f32 : draw.dtype();
  static constexpr Direction kDirections[] = {Direction::forward, Direction::forward, Direction::dx,
                                              Direction::dw};
  bsr_conv::Problem problem = describe_conv(index, shape, dtype, draw.pick(kDirections));
  problem.strict = draw.chance(10), problem.bias = draw.chance(10), problem.residual = draw.chance(10);
  if (draw.chance(3)) problem.m = draw.number();
  if (draw.chance(3)) problem.blocks += draw.below(3) - 1;
  if (draw.chance(3)) problem.shape.axis[draw.below(3)].out += static_cast<std::int32_t>(draw.below(3)) - 1;
  if (draw.chance(3)) problem.shape.axis[draw.below(3)].stride = static_cast<std::int32_t>(draw.number());
  if (draw.chance(2)) problem.accumulate = true;
  static constexpr const char* kKernels[] = {"", "", "", "", "", "", "reference", "reference", "none"};
  const auto plan = plan_conv(problem, index, executor, draw.pick(kKernels));
  const std::int64_t inside = shape.in_pixels(), outside = shape.out_pixels(), taps = shape.taps();
  if (inside > kMost || outside > kMost || taps > 100) return;
  const std::int64_t elements = index.blocks * taps * block.rows * block.cols;
  const MatrixView x = memory.matrix(draw, dtype, inside, cols),
                   y = memory.matrix(draw, dtype, outside, rows);
  const auto seldom_wrong = [&](MatrixView matrix) {
    if (draw.chance(3)) matrix.data = nullptr;
    if (draw.chance(3)) matrix.rows -= 1;
    if (draw.chance(3)) matrix.stride = draw.chance(50) ? matrix.cols - 1 : -matrix.stride;
    return matrix;
  };
  const MatrixView values = memory.matrix(draw, dtype, 1, elements);
  const std::span<std::byte> scratch = workspace(draw, memory, plan->workspace_bytes);
  const bool forward = problem.direction == Direction::forward;
  if (problem.direction == Direction::dw)
    return conv_dw(*plan, seldom_wrong(y), seldom_wrong(x), index, values.data, scratch, executor);
  const MatrixView& to = forward ? y : x;
  const MatrixView bias = memory.matrix(draw, dtype, 1, to.cols),
                   residual = memory.matrix(draw, dtype, to.rows, to.cols);
  Addends addends(problem.bias != draw.chance(3) ? bias.data : nullptr);
  if (problem.residual != draw.chance(3)) addends.residual = seldom_wrong(residual);
  if (!forward) {
    std::vector<std::int32_t> ccol(static_cast<std::size_t>(index.block_cols() + 1)), row(lists.col.size()),
        slot(lists.col.size());
    transpose_index(index, ccol.data(), row.data(), slot.data());
    if (draw.chance(5) && !slot.empty()) slot[0] = static_cast<std::int32_t>(draw.number());
    if (draw.chance(5) && !row.empty()) row[0] = static_cast<std::int32_t>(draw.number());
    const TransposedView transposed{memory.array(ccol), memory.array(row), memory.array(slot)};
    return conv_dx(*plan, seldom_wrong(y), index, transposed, values.data, addends, seldom_wrong(x), scratch,
                   executor);
  }
  conv(*plan, seldom_wrong(x), index, values.data, addends, seldom_wrong(y), scratch, executor);
  if (dtype != DType::f32 || problem.bias || problem.residual) return;
  const MatrixView dense = memory.matrix(draw, dtype, rows, taps * cols);
  conv_unpack(index, taps, values.data, dense, executor);
  const ConvAxis* const a = shape.axis;
  for (std::int64_t pixel = 0; pixel < outside; ++pixel) {
    const std::int64_t w = pixel % a[2].out, h = pixel / a[2].out % a[1].out,
                       d = pixel / a[2].out / a[1].out % a[0].out,
                       image = pixel / a[2].out / a[1].out / a[0].out;
    for (std::int64_t o = 0; o < rows; ++o) {
      double sum = 0;
      for (std::int64_t tap = 0; tap < taps; ++tap) {
        const std::int64_t under[] = {
            d * a[0].stride - a[0].padding + tap / a[2].kernel / a[1].kernel * a[0].dilation,
            h * a[1].stride - a[1].padding + tap / a[2].kernel % a[1].kernel * a[1].dilation,
            w * a[2].stride - a[2].padding + tap % a[2].kernel * a[2].dilation};
        bool in = true;
        for (int i = 0; i < 3; ++i) in = in && under[i] >= 0 && under[i] < a[i].in;
        if (!in) continue;
        const std::int64_t from = ((image * a[0].in + under[0]) * a[1].in + under[1]) * a[2].in + under[2];
        for (std::int64_t i = 0; i < cols; ++i) sum += at(x, from, i) * at(dense, o, tap * cols + i);
      }
      ASSERT_EQ(at(y, pixel, o), sum) << pixel << ", " << o;
    }
  }
}

void gates(Draw& draw) {
  Memory memory;
  const Executor executor = executor_of(draw);
  static constexpr std::int32_t kSides[] = {8, 8, 16, 32};
  const BlockShape block{draw.pick(kSides), draw.pick(kSides)};
  const std::int64_t rows = draw.below(60), cols = draw.below(60);
  const Lists lists(draw, lines_of(rows, block.rows), lines_of(cols, block.cols));
  if (std::ssize(lists.crow) != lines_of(rows, block.rows) + 1) return;  // too short for its sizes
  IndexView index{
      rows, cols, block, std::ssize(lists.col), memory.array(lists.crow), memory.array(lists.col)};
  std::vector<std::int32_t> ccol(static_cast<std::size_t>(index.block_cols() + 1)), row(lists.col.size()),
      slot(lists.col.size());
  try {
    validate_index("hostile", rows, cols, block, lists.crow, lists.col);
    transpose_index(index, ccol.data(), row.data(), slot.data());
  } catch (const Error&) {  // then the lists of columns say nothing, as a writer of wrong files has them
  }
  std::vector<std::int32_t>* const of[] = {&ccol, &row, &slot};
  std::vector<std::int32_t>& wrong = *draw.pick(of);
  if (draw.chance(15) && !wrong.empty())
    wrong[static_cast<std::size_t>(draw.below(std::ssize(wrong)))] = static_cast<std::int32_t>(draw.number());
  const TransposedView transposed{memory.array(ccol), memory.array(row), memory.array(slot)};
  const DType dtype = draw.dtype();
  const std::int64_t elements = index.blocks * index.block_elements();
  const MatrixView values = memory.matrix(draw, dtype, 1, elements),
                   to = memory.matrix(draw, dtype, 1, elements);
  std::vector<float> factors(lists.col.size());
  for (float& each : factors) each = draw.chance(30) ? 0 : draw.chance(2) ? NAN : 2;
  const std::int64_t size = index_segments(index.block_rows(), index.block_cols(), index.blocks).size;
  const GatedBlocks gated{static_cast<std::int32_t*>(memory.bytes(4 * size)), to.data,
                          static_cast<std::int32_t*>(memory.bytes(4 * index.blocks))};
  const float* const gates = memory.array(factors);
  gate_blocks(index, transposed, dtype, values.data, draw.chance(2) ? nullptr : gates, gated,
              workspace(draw, memory, gate_blocks_workspace(index, executor)), executor);
  for (std::int64_t i = 0; i < index.blocks && dtype == DType::f32; ++i) {
    const float gate = factors[static_cast<std::size_t>(i)];
    ASSERT_EQ(gated.place[i] < 0, gate == 0);
    if (gate != 2) continue;
    for (std::int64_t e = 0; e < index.block_elements(); ++e)
      ASSERT_EQ(at(to, 0, gated.place[i] * index.block_elements() + e),
                2 * at(values, 0, i * index.block_elements() + e));
  }
  const MatrixView gradient = memory.matrix(draw, dtype, 1, elements),
                   result = memory.matrix(draw, dtype, 1, elements);
  if (draw.chance(20) && index.blocks > 0)
    gated.place[draw.below(index.blocks)] = static_cast<std::int32_t>(draw.number());
  GateGradients call{dtype,         block,       index.blocks,
                     values.data,   gates,       gated.place,
                     gradient.data, result.data, static_cast<float*>(memory.bytes(4 * index.blocks))};
  if (draw.chance(10)) call.dvalues = nullptr;
  if (draw.chance(10)) call.dgates = nullptr;
  if (draw.chance(3)) call.blocks = -1;
  if (draw.chance(3)) call.block = {static_cast<std::int32_t>(draw.number()), 8};
  if (draw.chance(3)) call.gradient = nullptr;
  gate_gradients(call, executor);
}

void recurrent(Draw& draw) {
  Memory memory;
  const Executor executor = executor_of(draw);
  const std::int64_t n = draw.chance(3) ? draw.number() : draw.below(5);
  const std::int64_t hidden = draw.chance(3)    ? draw.number()
                              : draw.chance(50) ? 16 * draw.below(5)
                                                : draw.below(70);
  const DType dtype = draw.dtype(), state = dtype == DType::f64 ? DType::f64 : DType::f32;
  static constexpr std::int64_t kSides[] = {0, 0, 0, 16, 32, -16, 8, std::int64_t{1} << 62};
  const std::int64_t side = draw.pick(kSides);
  const bool small = n >= 0 && n <= 300 && hidden >= 0 && hidden <= 300;
  const auto units = [&](DType of, std::int64_t gates) -> void* {
    if (!small || draw.chance(1)) return nullptr;
    return memory.matrix(draw, of, 1, n * gates * hidden).data;
  };
  const auto maybe = [&](std::int64_t gates) -> void* {
    return draw.chance(50) ? units(dtype, gates) : nullptr;
  };
  const auto within_one = [&](const void* h) {
    for (std::int64_t i = 0; dtype == DType::f32 && i < n * hidden; ++i)
      ASSERT_LE(std::fabs(static_cast<const float*>(h)[i]), 2.f);  // the state before is within 2
  };
  switch (draw.below(4)) {
    case 0: {
      LstmCell cell{dtype,           n,   hidden, units(dtype, 4), units(state, 1), maybe(4), units(state, 1),
                    units(dtype, 1), side};
      lstm_cell(cell, executor);
      return within_one(cell.h);
    }
    case 1:
      return lstm_cell_gradient({dtype, n, hidden, units(dtype, 4), units(state, 1), units(state, 1),
                                 maybe(1), maybe(1), units(state, 1), units(dtype, 4), side},
                                executor);
    case 2: {
      GruCell cell{dtype,           n,        hidden,         units(dtype, 3), units(dtype, 3),
                   units(dtype, 1), maybe(4), units(dtype, 1)};
      gru_cell(cell, executor);
      return within_one(cell.h);
    }
    default:
      gru_cell_gradient({dtype, n, hidden, units(dtype, 4), units(dtype, 1), maybe(1), maybe(1), maybe(1),
                         units(dtype, 3), units(dtype, 3), units(dtype, 1)},
                        executor);
  }
}

void unit_norms(Draw& draw) {
  Memory memory;
  const Executor executor = executor_of(draw);
  UnitNorm norm;
  const auto number = [&](std::int64_t right) { return draw.chance(3) ? draw.number() : right; };
  norm.dtype = draw.dtype(), norm.n = number(draw.below(12)), norm.groups = number(1 + draw.below(4));
  norm.hidden = number(draw.chance(50) ? 32 * draw.below(3) : draw.below(70));
  norm.side = number(draw.chance(30) ? 32 : 0), norm.stride = number(1 + draw.below(3));
  norm.group = number(draw.below(std::clamp<std::int64_t>(norm.groups, 1, 4)));
  norm.multiply = draw.chance(50), norm.relu = draw.chance(50);
  const bool small = norm.n >= 0 && norm.n <= 12 && norm.hidden >= 0 && norm.hidden <= 70 &&
                     norm.groups >= 1 && norm.groups <= 4 && norm.stride >= 1;
  const DType of = norm.dtype == DType::f64 ? DType::f64 : DType::f32;
  const auto memory_of = [&](DType dtype, std::int64_t count) -> void* {
    return !small || draw.chance(1) ? nullptr : memory.matrix(draw, dtype, 1, count).data;
  };
  const std::int64_t units = small ? norm.groups * norm.hidden : 0, all = small ? norm.n * units : 0;
  // stride + hidden - 1 would overflow for the largest numbers
  const std::int64_t extras =
      small ? norm.n * (norm.hidden / norm.stride + (norm.hidden % norm.stride != 0)) : 0;
  norm.z = memory_of(norm.dtype, all), norm.y = memory_of(norm.dtype, all);
  norm.weight = memory_of(norm.dtype, units), norm.bias = memory_of(norm.dtype, units);
  if (draw.chance(50)) norm.extra = memory_of(norm.dtype, extras);
  const std::int64_t statistics = small ? norm.n * norm.groups * 2 : 0;
  if (draw.chance(70)) norm.statistics = memory_of(of, statistics);
  if (draw.chance(50)) return unit_norm(norm, executor);
  UnitNormGradient gradient{norm,    memory_of(norm.dtype, all), memory_of(norm.dtype, all),
                            nullptr, memory_of(of, statistics),  nullptr};
  if (draw.chance(50)) gradient.dextra = memory_of(norm.dtype, extras);
  if (draw.chance(50)) gradient.sums = memory_of(of, kUnitNormParts * 2 * units);
  unit_norm_gradient(gradient, executor);
}

}  // namespace sparseloom::hostile
