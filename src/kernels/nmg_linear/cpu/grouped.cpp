// The driver of the grouped kernels: x is transposed, then chunks and tiles are claimed one by one.
#if defined(__x86_64__)

#include "kernels/nmg_linear/cpu/grouped.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/shared/cpu/claims.h"
#include "kernels/shared/cpu/share.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom::kernels::cpu {
namespace {

/// Elements of the sums of a chunk, once or twice, and of its values in fp32.
std::int64_t all_sums_of(std::int64_t lanes, std::int64_t vectors, const NmgView& w) {
  return (w.strips() > strips_at_once(w) ? 2 : 1) * sums_of(lanes, vectors, w);
}
std::int64_t scratch_of(std::int64_t lanes, std::int64_t vectors, const NmgView& w) {
  return all_sums_of(lanes, vectors, w) + core::round_up(w.chunk_rows() * w.n + lanes, kLineCells);
}

}  // namespace

std::int64_t grouped_vectors(std::int64_t lanes, std::int64_t m, std::int64_t chunk_rows) noexcept {
  if (m == 1) return 0;
  constexpr std::int64_t kSums = 6144;  // 24 KB
  const std::int64_t room = std::clamp<std::int64_t>(kSums / (chunk_rows * lanes), 1, kMostVectors);
  return std::min(room, core::ceil_div(std::max<std::int64_t>(m, 1), lanes));
}

std::size_t grouped_workspace(std::int64_t lanes, std::int64_t m, const NmgView& w,
                              std::int64_t threads) noexcept {
  const std::int64_t x = core::round_up(m, lanes) * w.strips() * w.m;
  const std::int64_t vectors = grouped_vectors(lanes, m, w.chunk_rows());
  return sizeof(float) *
         static_cast<std::size_t>(core::round_up(x, kLineCells) + threads * scratch_of(lanes, vectors, w));
}

void run_grouped(const GroupedOps& ops, const MatmulArgs& args, const NmgView& w, const Executor& executor) {
  if (args.m == 0 || w.rows == 0) return;
  ops.runs->add();
  const std::int64_t lanes = ops.lanes, vectors = grouped_vectors(lanes, args.m, w.chunk_rows());
  const std::int64_t in_all = core::ceil_div(args.m, lanes),
                     tiles = core::ceil_div(in_all, std::max<std::int64_t>(vectors, 1));
  const std::int64_t columns = w.strips() * w.m;
  float* const x = reinterpret_cast<float*>(args.workspace);
  float* const scratch = x + core::round_up(in_all * lanes * columns, kLineCells);
  const GroupedJob job{args, w};
  const auto tile = [&](std::int64_t i) {
    const std::int64_t first = i * vectors;
    return TokenTile{first * lanes, std::min(vectors, in_all - first), x + first * lanes * columns};
  };
  // Each work item packs some strips, so that few tokens keep all threads busy too.
  constexpr std::int64_t kColumns = 512;
  const std::int64_t strips_of_item = std::max<std::int64_t>(args.m == 1 ? w.strips() : kColumns / w.m, 1);
  const std::int64_t items_of_tile = core::ceil_div(w.strips(), strips_of_item);
  Phase packing(tiles * items_of_tile), products(tiles * w.chunks());
  const double work = static_cast<double>(args.m) * static_cast<double>(Nmg::stored(w));
  const std::int64_t tasks = tasks_of(work / kTaskProducts, executor);
  runtime::parallel_tasks(executor, tasks, [&](std::int64_t task) {
    packing.work([&](std::int64_t item) {
      const std::int64_t begin = item % items_of_tile * strips_of_item;
      ops.pack_x(job, tile(item / items_of_tile), begin, std::min(begin + strips_of_item, w.strips()));
    });
    packing.wait();
    float* const sums = scratch + task * scratch_of(lanes, vectors, w);
    products.work([&](std::int64_t item) {
      // Tile by tile: x of a tile stays in L2 for all chunks.
      ops.chunk(job, tile(item / w.chunks()), item % w.chunks(), sums, sums + all_sums_of(lanes, vectors, w));
    });
  });
}

}  // namespace sparseloom::kernels::cpu

#endif
