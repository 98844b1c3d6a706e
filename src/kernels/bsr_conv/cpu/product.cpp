// The sources of pixels for the panel kernels, the workspace of a call, and its runs.
#if defined(__x86_64__)  // as panel_dw_run.h

#include "kernels/bsr_conv/cpu/product.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "core/check.h"
#include "kernels/bsr_linear/cpu/panel_dw_run.h"
#include "kernels/bsr_linear/cpu/panel_run.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom::kernels::cpu {
namespace {

using core::ceil_div;
using core::round_up;

/// A panel's tokens are pixels. A work item of packing consists of whole blocks, since kPackSteps is a
/// multiple of every block side.
struct PixelSource {
  static constexpr bool kPlaces = false;
  Pixels pixels;

  void pack(const PanelOps& ops, const PanelJob& job, const Pack& pack) const {
    const std::int64_t steps = pixels.side / ops.depth_step, cells = std::int64_t{pack.vectors} * ops.lanes;
    const PixelRows pixel_rows(pixels, pack.token, std::min(cells, job.tokens - pack.token));
    const void* rows[2][PixelRows::kMost];
    const auto find = [&](std::int64_t step) {
      const std::int64_t block = step / steps;
      return pixel_rows.find(block, rows[block % 2], static_cast<int>(cells));
    };
    for (std::int64_t step = pack.begin, depth = find(step); step < pack.end; step += steps) {
      const bool last = step + steps >= pack.end;
      const std::int64_t next = last ? 0 : find(step + steps), turn = step / steps % 2;
      ops.pack_rows(job.dtype, {rows[turn], last ? nullptr : rows[1 - turn], pack.vectors, depth, steps,
                                pack.panel + step * cells});
      depth = next;
    }
  }
};

/// dX of a stride above 1: the pixels of a class are not contiguous.
struct ClassSource : PixelSource {
  static constexpr bool kPlaces = true;
  int extent[3];  // extent of dX
  std::byte* out;
  std::int64_t out_bytes;  // bytes per pixel of out

  void place(const Placed& placed) const {
    const conv::Walk(&w)[3] = pixels.axis;
    const auto size = static_cast<std::int64_t>(size_of(pixels.dtype));
    const auto bytes = static_cast<std::size_t>((placed.output_end - placed.output) * size);
    for (std::int64_t i = 0; i < placed.tokens; ++i) {
      std::int64_t rest = placed.token + i, at[3];
      for (int a = 2; a >= 0; --a)
        at[a] = w[a].own_first + rest % w[a].walked * w[a].own_step, rest /= w[a].walked;
      const std::int64_t pixel = ((rest * extent[0] + at[0]) * extent[1] + at[1]) * extent[2] + at[2];
      std::memcpy(out + pixel * out_bytes + placed.output * size, placed.rows + i * placed.row_bytes, bytes);
    }
  }
};

/// dW's X: its columns are channels under taps.
struct PixelColumns {
  Pixels pixels;

  void pack(const PanelOps& ops, const MatmulArgs& args, const ColumnShare& share) const {
    const std::int64_t per_block = pixels.side / share.piece, piece_cells = share.steps * share.piece;
    const std::int64_t most = PixelRows::kMost / ops.depth_step;  // steps
    const void* rows[PixelRows::kMost];
    for (std::int64_t step = 0; step < share.steps; step += most) {
      const std::int64_t steps = std::min(most, share.steps - step), token = step * ops.depth_step;
      const PixelRows pixel_rows(pixels, share.token + token,
                                 std::min(steps * ops.depth_step, share.tokens - token));
      for (std::int64_t piece = share.begin; piece < share.end;) {
        const std::int64_t block = piece / per_block, end = std::min(share.end, (block + 1) * per_block),
                           columns = pixel_rows.find(block, rows, static_cast<int>(steps * ops.depth_step));
        ops.pack_column_rows(args.dtype, {rows, steps, columns, (piece - block * per_block) * share.piece,
                                          (end - block * per_block) * share.piece, share.piece, piece_cells,
                                          share.out + piece * piece_cells + step * share.piece});
        piece = end;
      }
    }
  }
  /// A block column is a channel block under a tap.
  std::int64_t valid(const IndexView&, std::int64_t block_column) const {
    return pixels.channels - block_column / pixels.taps() * pixels.side;
  }
  std::int64_t alike() const { return pixels.taps(); }
};

Pixels pixels_of(const bsr_conv::Args& args, const ConvProduct& product, const void* in, std::int64_t stride,
                 std::int64_t channels, std::int64_t side) {
  const DType dtype = args.product.dtype;
  Pixels pixels{{},
                static_cast<const std::byte*>(in),
                stride * static_cast<std::int64_t>(size_of(dtype)),
                channels,
                side,
                dtype};
  std::copy(std::begin(product.axis), std::end(product.axis), pixels.axis);
  return pixels;
}

std::int64_t blocks_along(std::int64_t channels, std::int32_t side) { return ceil_div(channels, side); }

/// A weight with one block per stored block and tap: the arguments of a product, whose index is written to
/// `lists`, which is advanced past it.
MatmulArgs with_taps(const bsr_conv::Args& args, const ConvProduct& product, std::int32_t*& lists) {
  MatmulArgs one = args.product;
  const IndexView& w = args.product.index;
  const bool dx = one.direction == Direction::dx;
  const std::int64_t taps = product.taps(), count = dx ? w.block_cols() : w.block_rows();
  const std::int32_t *const begin = dx ? one.transposed.ccol : w.crow, *const depth =
                                                                           dx ? one.transposed.row : w.col;
  const auto claim = [&](std::int64_t length) {
    std::int32_t* const at = lists;
    lists += length;
    return at;
  };
  std::int32_t *const starts = claim(count + 1), *const depths = claim(w.blocks * taps),
                      *const slots = dx ? claim(w.blocks * taps) : nullptr;
  for (std::int64_t i = 0; i <= count; ++i) starts[i] = static_cast<std::int32_t>(begin[i] * taps);
  for (std::int64_t i = 0, at = 0; i < w.blocks; ++i)
    for (std::int64_t t = 0; t < taps; ++t, ++at) {
      depths[at] = static_cast<std::int32_t>(depth[i] * taps + t);
      if (dx)
        slots[at] = static_cast<std::int32_t>(one.transposed.slot[i] * args.shape.taps() +
                                              product.tap(args.shape, t));
    }
  one.m = product.pixels(args.shape);
  one.index.blocks = w.blocks * taps;
  if (dx) {
    one.index.rows = w.block_rows() * w.block.rows * taps;
    one.transposed = {starts, depths, slots};
  } else {
    one.index.cols = w.block_cols() * w.block.cols * taps;
    one.index.crow = starts, one.index.col = depths;
  }
  return one;
}

/// Numbers in all products' lists: each tap belongs to one class.
std::int64_t lists_of(const IndexView& w, Direction direction, std::int64_t taps, std::int64_t products) {
  return direction == Direction::dx ? products * (w.block_cols() + 1) + 2 * w.blocks * taps
                                    : w.block_rows() + 1 + w.blocks * taps;
}

/// The products of a call share the bytes that a single product would have for its panels.
std::int64_t chunk_bytes(std::int64_t products) { return kPanelChunkBytes / products; }

template <class Source>
struct ConvRun {
  MatmulArgs args;
  PanelRun<Source> run;
  ConvRun(const PanelOps& ops, const MatmulArgs& one, const Problem& problem, const Source& source,
          std::int64_t products, const Executor& executor)
      : args(one), run(ops, args, problem, source, executor, chunk_bytes(products)) {}
};

/// The layout of a workspace, in bytes; the products' own come first.
struct ConvMemory {
  std::int64_t lists = 0, runs = 0;
  std::size_t bytes = 0;

  static std::int64_t of_product(const PanelOps& ops, const Problem& one, std::int64_t products) {
    return round_up(static_cast<std::int64_t>(PanelMemory(ops, one, chunk_bytes(products)).bytes), kAlign);
  }

  ConvMemory(const PanelOps& ops, const bsr_conv::Problem& p) {
    const std::int64_t products = products_of(p.shape, p.direction);
    for (std::int64_t i = 0; i < products; ++i) {
      const Problem one = problem_of(p, ConvProduct(p.shape, p.direction, i));
      lists +=
          p.direction == Direction::dw
              ? round_up(static_cast<std::int64_t>(outer_workspace(ops.depth_step, one, kConvOuterBytes)),
                         kAlign)
              : of_product(ops, one, products);
    }
    const IndexView w{p.rows, p.cols, p.block, p.blocks, nullptr, nullptr};
    runs = lists + round_up(lists_of(w, p.direction, p.shape.taps(), products) *
                                static_cast<std::int64_t>(sizeof(std::int32_t)),
                            kAlign);
    const std::int64_t run = p.direction == Direction::dw ? 0 : sizeof(ConvRun<ClassSource>);
    bytes = static_cast<std::size_t>(runs + products * run);
  }
};

bsr_conv::Problem problem_of(const bsr_conv::Args& args) {
  const MatmulArgs& product = args.product;
  bsr_conv::Problem problem;
  problem.direction = product.direction, problem.dtype = product.dtype, problem.m = product.m;
  problem.rows = product.index.rows, problem.cols = product.index.cols;
  problem.block = product.index.block, problem.blocks = product.index.blocks;
  problem.accumulate = product.accumulate, problem.shape = args.shape;
  return problem;
}

/// Forward, or the classes of dX one after the other in one parallel region. source(product) returns a
/// Source.
template <class Source, class Make>
void run_products(const PanelOps& ops, const bsr_conv::Args& args, const ConvMemory& memory,
                  const Make& source, const Executor& executor) {
  const bsr_conv::Problem problem = problem_of(args);
  auto* lists = reinterpret_cast<std::int32_t*>(args.product.workspace + memory.lists);
  auto* const runs = reinterpret_cast<ConvRun<Source>*>(args.product.workspace + memory.runs);
  const std::int64_t products = products_of(args.shape, problem.direction);
  std::int64_t count = 0, tasks = 1, at = 0;
  for (std::int64_t i = 0; i < products; ++i) {
    const ConvProduct product(args.shape, problem.direction, i);
    if (product.pixels(args.shape) == 0) continue;
    const Problem one = problem_of(problem, product);
    MatmulArgs own = with_taps(args, product, lists);
    own.workspace += at, at += ConvMemory::of_product(ops, one, products);
    auto& run = *new (runs + count++) ConvRun<Source>(ops, own, one, source(product), products, executor);
    run.run.begin();
    tasks = std::max(tasks, run.run.tasks());
  }
  runtime::parallel_tasks(executor, tasks, [&](std::int64_t task) {
    DeferredLines lines;
    for (std::int64_t i = 0; i < count; ++i) runs[i].run.work(task, lines);
    lines.finish();
  });
  for (std::int64_t i = 0; i < count; ++i) runs[i].~ConvRun<Source>();
}

}  // namespace

ConvProduct::ConvProduct(const ConvShape& shape, Direction direction, std::int64_t number) {
  for (int a = 2; a >= 0; --a) {
    const ConvAxis& tensor_axis = shape.axis[a];
    if (direction == Direction::dx)
      axis[a] = conv::walk_dx(tensor_axis, static_cast<int>(number % tensor_axis.stride)),
      number /= tensor_axis.stride;
    else
      axis[a] = conv::walk_forward(tensor_axis);
  }
}

std::int64_t ConvProduct::tap(const ConvShape& shape, std::int64_t i) const {
  const auto of_axis = [&](int a, std::int64_t t) { return axis[a].tap_first + t * axis[a].tap_each; };
  const std::int64_t z = of_axis(0, i / (axis[1].taps * axis[2].taps)),
                     y = of_axis(1, i / axis[2].taps % axis[1].taps), x = of_axis(2, i % axis[2].taps);
  return (z * shape.axis[1].kernel + y) * shape.axis[2].kernel + x;
}

std::int64_t products_of(const ConvShape& shape, Direction direction) {
  return direction == Direction::dx ? shape.strides() : 1;
}

Problem problem_of(const bsr_conv::Problem& problem, const ConvProduct& product) {
  Problem one = problem;
  one.m = product.pixels(problem.shape);
  one.blocks = problem.blocks * product.taps();
  if (problem.direction == Direction::dx)
    one.rows = blocks_along(problem.rows, problem.block.rows) * problem.block.rows * product.taps();
  else
    one.cols = blocks_along(problem.cols, problem.block.cols) * problem.block.cols * product.taps();
  return one;
}

std::size_t conv_workspace(const PanelOps& ops, const bsr_conv::Problem& problem) {
  return ConvMemory(ops, problem).bytes;
}

void run_conv(const PanelOps& ops, Runs& runs, const bsr_conv::Args& args, const Executor& executor) {
  const MatmulArgs& call = args.product;
  const IndexView& w = call.index;
  const bsr_conv::Problem problem = problem_of(args);
  const ConvMemory memory(ops, problem);
  runs.add();
  if (call.direction == Direction::dw) {
    if (w.blocks == 0) return;
    const ConvProduct product(args.shape, call.direction, 0);
    auto* lists = reinterpret_cast<std::int32_t*>(call.workspace + memory.lists);
    const MatmulArgs one = with_taps(args, product, lists);
    const PixelColumns source{pixels_of(args, product, call.b, call.b_stride, w.cols, w.block.cols)};
    return OuterRun<PixelColumns>(ops, one, source, executor, kConvOuterBytes).run();
  }
  const bool dx = call.direction == Direction::dx;
  const auto source = [&](const ConvProduct& product) {
    return PixelSource{pixels_of(args, product, call.a, call.a_stride, dx ? w.rows : w.cols,
                                 dx ? w.block.rows : w.block.cols)};
  };
  if (products_of(args.shape, call.direction) == 1)
    return run_products<PixelSource>(ops, args, memory, source, executor);
  const auto scattered = [&](const ConvProduct& product) {
    const auto size = static_cast<std::int64_t>(size_of(call.dtype));
    const ConvAxis(&axis)[3] = args.shape.axis;
    return ClassSource{source(product),
                       {axis[0].in, axis[1].in, axis[2].in},
                       static_cast<std::byte*>(call.out),
                       call.out_stride * size};
  };
  run_products<ClassSource>(ops, args, memory, scattered, executor);
}

}  // namespace sparseloom::kernels::cpu

#endif
