// The driver of the expand kernels: prepares x, then multiplies in work items of rows (forward) or columns
// (dX).
#if defined(__x86_64__)

#include "kernels/bitmap_linear/cpu/expand.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/check.h"
#include "kernels/shared/cpu/claims.h"
#include "kernels/shared/cpu/share.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom::kernels::cpu {
namespace {

constexpr std::int64_t kVectorBytes = 64;  // that a kernel reads at once

/// Where the parts of a workspace begin, in bytes.
struct Places {
  std::int64_t depth, x, cells, tail, rooms, room, sums, end;

  Places(const BitmapOps& ops, const BitmapView& w, Direction direction, DType dtype, std::int64_t m,
         std::int64_t threads) {
    const auto lines = [](std::int64_t bytes) { return core::round_up(bytes, kAlign); };
    depth = core::round_up(direction == Direction::forward ? w.cols : w.rows, kBitmapVector);
    x = 0, cells = m * depth * kCellBytes;
    const bool by_tokens = direction == Direction::forward && ops.by_tokens != nullptr && bitmap_by_tokens(m);
    tail = cells + (by_tokens ? core::round_up(m, kLineCells) * depth * ops.x_bytes : 0);
    rooms = tail + lines(w.cols * static_cast<std::int64_t>(size_of(dtype)) + 2 * kVectorBytes);
    sums = std::min(m, kBitmapTokens) * bitmap_dx_cols(m) * kCellBytes;
    room = direction == Direction::dx ? 2 * sums + lines(w.rows * kCellBytes) : 0;
    end = rooms + threads * room;
  }
};

/// Tokens of a pass: x as it is multiplied, and by tokens again, takes 64 MiB at most or as much as the
/// fewest tokens do, and every pass of a kernel is whole.
std::int64_t tokens_of_pass(const BitmapView& w, Direction direction) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 26;
  const std::int64_t depth = direction == Direction::forward ? w.cols : w.rows;
  const std::int64_t fit = kMostBytes / (2 * kCellBytes * core::round_up(depth, kBitmapVector));
  return std::max(kBitmapMostTokens, fit / kBitmapMostTokens * kBitmapMostTokens);
}

/// The arguments of some tokens.
MatmulArgs tokens_from(const MatmulArgs& args, std::int64_t begin, std::int64_t count) {
  const auto size = static_cast<std::int64_t>(size_of(args.dtype)),
             out_size = static_cast<std::int64_t>(size_of(args.a_scale ? args.out_dtype : args.dtype));
  MatmulArgs some = args;
  some.m = count;
  some.a = static_cast<const std::byte*>(args.a) + begin * args.a_stride * size;
  some.out = static_cast<std::byte*>(args.out) + begin * args.out_stride * out_size;
  if (args.residual != nullptr)
    some.residual = static_cast<const std::byte*>(args.residual) + begin * args.residual_stride * out_size;
  if (args.a_scale_each) some.a_scale = args.a_scale + begin;
  return some;
}

/// Tasks worth starting for m tokens.
std::int64_t tasks_for(const BitmapView& w, std::int64_t m, const Executor& executor) {
  // Expanding an element costs as much as multiplying it with some tokens.
  constexpr double kExpandTokens = 3;
  const double products = static_cast<double>(w.rows * w.cols) * (static_cast<double>(m) + kExpandTokens);
  return tasks_of(products / kTaskProducts, executor);
}

/// Lays out x by tokens, at `cells`. Tasks take some columns of 16 tokens.
void transpose(const BitmapOps& ops, const MatmulArgs& args, const Places& places, std::int64_t tasks,
               const Executor& executor) {
  constexpr std::int64_t kColumns = 512;  // cells of a task
  const std::int64_t depth = places.depth * ops.x_bytes / kCellBytes;
  const std::int64_t groups = core::ceil_div(args.m, kLineCells), parts = core::ceil_div(depth, kColumns);
  const auto* const x = reinterpret_cast<const float*>(args.workspace);
  auto* const cells = reinterpret_cast<float*>(args.workspace + places.cells);
  Claims claims;
  runtime::parallel_tasks(executor, std::min(tasks, groups * parts), [&](std::int64_t) {
    for (std::int64_t item; (item = claims.take()) < groups * parts;) {
      const std::int64_t token = item / parts * kLineCells, begin = item % parts * kColumns;
      const std::int64_t of_pass = token / kBitmapTokens * kBitmapTokens;
      const std::int64_t width = core::round_up(std::min(kBitmapTokens, args.m - of_pass), kLineCells);
      ops.by_tokens(x + token * depth + begin, depth, std::min(kLineCells, args.m - token),
                    std::min(kColumns, depth - begin),
                    cells + of_pass * depth + begin * width + (token - of_pass), width);
    }
  });
}

/// The first row that a vector which is read at the end of it would leave, and a copy of the values from it
/// on.
std::int64_t copy_tail(const MatmulArgs& args, const BitmapView& w, std::byte* copy, const std::byte** base) {
  const auto size = static_cast<std::int64_t>(size_of(args.dtype));
  const std::int32_t* const ends = w.crow + 1;
  const std::int64_t row = std::upper_bound(ends, ends + w.rows, w.stored - kVectorBytes / size) - ends;
  const auto* const values = static_cast<const std::byte*>(args.values);
  const std::int64_t begin = row < w.rows ? w.crow[row] : w.stored, bytes = (w.stored - begin) * size;
  if (bytes > 0) std::memcpy(copy, values + begin * size, static_cast<std::size_t>(bytes));
  std::memset(copy + bytes, 0, static_cast<std::size_t>(kVectorBytes));
  *base = copy - begin * size;
  return row;
}

void run_pass(const BitmapOps& ops, const MatmulArgs& args, const BitmapView& w, const Executor& executor) {
  const bool forward = args.direction == Direction::forward;
  const Places places(ops, w, args.direction, args.dtype, args.m, std::max(1, executor.num_threads));
  const std::int64_t tasks = tasks_for(w, args.m, executor), depth = forward ? w.cols : w.rows;
  std::byte* const x = args.workspace;
  std::atomic<bool> finite{true};
  Claims tokens;
  runtime::parallel_tasks(executor, std::min(tasks, args.m), [&](std::int64_t) {
    for (std::int64_t token; (token = tokens.take()) < args.m;) {
      const auto size = static_cast<std::int64_t>(size_of(args.dtype));
      const void* const from = static_cast<const std::byte*>(args.a) + token * args.a_stride * size;
      if (!ops.prepare(args.dtype, from, depth, places.depth, x + token * places.depth * ops.x_bytes))
        finite.store(false, std::memory_order_relaxed);
    }
  });
  const std::byte* tail_values = nullptr;
  const std::int64_t tail = copy_tail(args, w, args.workspace + places.tail, &tail_values);
  const bool by_tokens = forward && ops.by_tokens != nullptr && bitmap_by_tokens(args.m) && finite.load();
  if (by_tokens) transpose(ops, args, places, tasks, executor);
  const float* const cells =
      by_tokens ? reinterpret_cast<const float*>(args.workspace + places.cells) : nullptr;
  constexpr std::int64_t kNearBytes = std::int64_t{1} << 19;  // half of 1 MiB of L2
  const std::int64_t fit = kNearBytes / (places.depth * ops.x_bytes) / kBitmapTokens * kBitmapTokens;
  const std::int64_t at_once = std::clamp(fit, kBitmapTokens, kBitmapMostTokens);
  const BitmapJob job{args, w, x, places.depth, cells, at_once, finite.load(), tail, tail_values};
  if (forward) {
    const std::int64_t units = core::ceil_div(w.rows, kBitmapRows);
    const std::int64_t parts = tasks == 1 ? 1 : std::min({units, kPartsOfTask * tasks, Parts::kMost});
    Parts shared(parts, std::min(tasks, parts));
    runtime::parallel_tasks(executor, std::min(tasks, parts), [&](std::int64_t task) {
      shared.work(task, [&](std::int64_t part) {
        const Range rows = share(units, part, parts);
        ops.forward(job, rows.begin * kBitmapRows, std::min(rows.end * kBitmapRows, w.rows));
      });
    });
    return;
  }
  // Each item counts the elements of each row before its columns: few items.
  constexpr std::int64_t kItemsOfTask = 2;
  const std::int64_t units = core::ceil_div(w.cols, kBitmapCols);
  const std::int64_t items = tasks == 1 ? 1 : std::min(units, kItemsOfTask * tasks);
  Claims claims;
  runtime::parallel_tasks(executor, std::min(tasks, items), [&](std::int64_t task) {
    std::byte* const at = args.workspace + places.rooms + task * places.room;
    const BitmapRoom room{reinterpret_cast<float*>(at), reinterpret_cast<float*>(at + places.sums),
                          reinterpret_cast<std::int32_t*>(at + 2 * places.sums)};
    for (std::int64_t item; (item = claims.take()) < items;) {
      const Range cols = share(units, item, items);
      ops.dx(job, cols.begin * kBitmapCols, std::min(cols.end * kBitmapCols, w.cols), room);
    }
  });
}

}  // namespace

std::size_t bitmap_workspace(const BitmapOps& ops, const BitmapView& w, Direction direction, DType dtype,
                             std::int64_t m, std::int64_t threads) {
  const std::int64_t most = tokens_of_pass(w, direction);
  const auto bytes = [&](std::int64_t tokens) {
    return static_cast<std::size_t>(Places(ops, w, direction, dtype, tokens, threads).end);
  };
  // The last pass may have fewer tokens, whose sums are of more columns.
  return m <= most ? bytes(m) : std::max(bytes(most), bytes(m % most));
}

void run_bitmap(const BitmapOps& ops, const MatmulArgs& args, const BitmapView& w, const Executor& executor) {
  ops.runs->add();
  const std::int64_t most = tokens_of_pass(w, args.direction);
  if (args.m <= most) return run_pass(ops, args, w, executor);
  for (std::int64_t token = 0; token < args.m; token += most)
    run_pass(ops, tokens_from(args, token, std::min(most, args.m - token)), w, executor);
}

}  // namespace sparseloom::kernels::cpu

#endif
