// Divides the pass by sizes alone, so that its bits are the same on any number of threads; and has the form
// for f64 and for CPUs without AVX2.
#include "kernels/bsr_linear/cpu/gradient.h"

#include <algorithm>
#include <new>

#include "core/check.h"
#include "kernels/shared/cpu/claims.h"
#include "kernels/shared/cpu/share.h"
#include "runtime/cpu.h"
#include "sparseloom/generic/parallel.h"
#include "sparseloom/generic/scalar.h"

namespace sparseloom::kernels::cpu {
namespace {

// Rows of a chunk, whose sums are added up one after another: at least kRows, so that the chunks' sums are
// few beside the matrix, and enough that there are at most kChunks chunks; but at most kMostRows, since
// longer chains of additions lose precision.
constexpr std::int64_t kRows = 32, kChunks = 64, kMostRows = 1024;
constexpr std::int64_t kCols = 1024;  // columns of one work item: pages of 4 KB in fp32
// Elements that take as long as a thread takes to wake (kTaskUs): 4 per ns, if memory does not limit them.
constexpr double kTaskElementsOfPass = 20e3;

struct Cut {
  std::int64_t rows, chunks, strips;
  explicit Cut(const ConstMatrixView& dy)
      : rows(std::clamp(core::ceil_div(dy.rows, kChunks), kRows, kMostRows)),
        chunks(std::max<std::int64_t>(1, core::ceil_div(dy.rows, rows))),
        strips(core::ceil_div(dy.cols, kCols)) {}
};

constexpr std::int64_t kStageBytes = core::round_up(static_cast<std::int64_t>(sizeof(Stage)), kAlign);

const GradientOps& ops_of([[maybe_unused]] DType dtype) {
#if defined(__x86_64__)
  if (dtype != DType::f64 && runtime::active_isa().has(runtime::Isa::avx2)) return kGradientAvx2;
#endif
  return kGradientScalar;
}

double dz_of(Activation activation, double dy, double saved) {
  // Like torch's threshold_backward: a NaN in y lets dy through, and 0 is not a product with dy, which may be
  // infinite.
  if (activation == Activation::relu) return saved <= 0 ? 0 : dy;
  return dy * slope(activation, saved);
}

void scalar_rows(const GradientArgs& args, const GradientTile& tile, void* sums) {
  const DType dtype = args.dy.dtype;
  auto* const sum = static_cast<double*>(sums);
  if (sum != nullptr) std::fill(sum + tile.col, sum + tile.col_end, 0.0);
  for (std::int64_t r = tile.row; r < tile.row_end; ++r)
    for (std::int64_t c = tile.col; c < tile.col_end; ++c) {
      double x = load(dtype, args.dy.data, r * args.dy.stride + c);
      if (args.activation != Activation::none) {
        x = dz_of(args.activation, x, load(dtype, args.saved.data, r * args.saved.stride + c));
        store(dtype, args.dz.data, r * args.dz.stride + c, x);
        x = load(dtype, args.dz.data, r * args.dz.stride + c);
      }
      if (sum != nullptr) sum[c] += x;
    }
}

void scalar_total(const GradientArgs& args, const void* sums, std::int64_t chunks, std::int64_t begin,
                  std::int64_t end) {
  const auto* const sum = static_cast<const double*>(sums);
  for (std::int64_t c = begin; c < end; ++c) {
    double total = 0;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) total += sum[chunk * args.dy.cols + c];
    store(args.dy.dtype, args.dbias, c, total);
  }
}

}  // namespace

const GradientOps kGradientScalar{sizeof(double), scalar_rows, scalar_total};

std::size_t gradient_workspace(const ConstMatrixView& dy) {
  return static_cast<std::size_t>(kStageBytes + Cut(dy).chunks * dy.cols * ops_of(dy.dtype).sum_bytes);
}

void gradient(const GradientArgs& args, const Executor& executor) {
  const Cut cut(args.dy);
  const GradientOps& ops = ops_of(args.dy.dtype);
  std::byte* const sums = args.dbias == nullptr ? nullptr : args.workspace + kStageBytes;
  Stage& stage = *new (args.workspace) Stage{Phase(cut.chunks * cut.strips), Phase(cut.strips)};
  const auto cols = [&](std::int64_t strip) {
    return Range{strip * kCols, std::min((strip + 1) * kCols, args.dy.cols)};
  };
  const double elements = static_cast<double>(args.dy.rows) * static_cast<double>(args.dy.cols);
  const std::int64_t tasks = tasks_of(elements / kTaskElementsOfPass, executor);
  runtime::parallel_tasks(executor, tasks, [&](std::int64_t) {
    stage.packing.work([&](std::int64_t item) {
      const std::int64_t chunk = item / cut.strips, row = chunk * cut.rows;
      const Range columns = cols(item % cut.strips);
      ops.rows(args, {row, std::min(row + cut.rows, args.dy.rows), columns.begin, columns.end},
               sums == nullptr ? nullptr : sums + chunk * args.dy.cols * ops.sum_bytes);
    });
    if (sums == nullptr) return;
    stage.packing.wait();
    stage.products.work([&](std::int64_t strip) {
      const Range columns = cols(strip);
      ops.total(args, sums, cut.chunks, columns.begin, columns.end);
    });
  });
}

}  // namespace sparseloom::kernels::cpu
