// Sums of so many products that one register's chain of additions would lose a digit (long_sums.h), by every
// kernel of the CPU that does not refuse. 2:4's are in semi24_test.cpp.
#include "kernels/long_sums.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "kernels/bsr_linear/cpu/gradient.h"
#include "kernels/case.h"
#include "kernels/csr_case.h"
#include "sparseloom/nm_ops.h"
#include "sparseloom/nmg_linear.h"

namespace sparseloom {
namespace {

using testing::Case, testing::CsrCase, testing::CsrInstance, testing::Instance, testing::LongSums,
    testing::Matrix;

using Factors = std::pair<double, double>;

/// All blocks are stored.
void check_bsr(Direction direction, std::int64_t m, std::int64_t rows, std::int64_t cols, BlockShape block) {
  Case c;
  c.direction = direction, c.m = m, c.rows = rows, c.cols = cols, c.block = block, c.density = 1;
  Instance instance(c);
  const auto weight = [&](std::int64_t o, std::int64_t i) {
    const std::int64_t at = instance.crow[o / block.rows] + i / block.cols;
    return instance.values.at(at * block.rows + o % block.rows, i % block.cols);
  };
  for (const kernels::Kernel* kernel : testing::runnable(instance.problem(1))) {
    const Matrix out = instance.run(*kernel, Executor::serial());
    LongSums sums;
    for (std::int64_t r = 0; r < out.rows; ++r)
      for (std::int64_t j = 0; j < out.cols; ++j) switch (direction) {
          case Direction::forward:
            sums.add(out.at(r, j), cols, [&](std::int64_t i) {
              return Factors{instance.x.at(r, i), weight(j, i)};
            });
            break;
          case Direction::dx:
            sums.add(out.at(r, j), rows, [&](std::int64_t i) {
              return Factors{instance.dy.at(r, i), weight(i, j)};
            });
            break;
          case Direction::dw:  // of one block
            sums.add(out.at(r, j), m, [&](std::int64_t i) {
              return Factors{instance.dy.at(i, r), instance.x.at(i, j)};
            });
            break;
        }
    sums.expect_short_chains(describe(c) + " by " + kernel->name);
  }
}

TEST(LongSums, OfBlocks) {
  for (const std::int64_t m : {4, 8, 40}) {
    check_bsr(Direction::forward, m, 8, 98304, {8, 128});
    check_bsr(Direction::forward, m, 16, 65536, {16, 32});
    check_bsr(Direction::dx, m, 16384, 16, {32, 16});
    check_bsr(Direction::dx, m, 16384, 8, {128, 8});
  }
  check_bsr(Direction::dx, 1, 16384, 64, {128, 64});
  check_bsr(Direction::dw, 16384, 16, 16, {16, 16});
}

void check_csr(const CsrCase& c) {
  CsrInstance instance(c);
  const Executor serial = Executor::serial();
  for (const Candidate& each : CsrLinear::plan(instance.problem(), serial, "reference")->candidates) {
    if (!each.refusal.empty() || each.kernel == "reference") continue;
    const auto plan = CsrLinear::plan(instance.problem(), serial, each.kernel);
    Matrix out = instance.output();
    MatmulArgs args;
    args.a = instance.a.data(), args.a_stride = instance.a.stride;
    args.b = instance.b.data(), args.b_stride = instance.b.stride;
    args.values = instance.values.data(), args.out = out.data(), args.out_stride = out.stride;
    Workspace workspace;
    CsrLinear::run(*plan, args, instance.w, workspace.at_least(plan->workspace_bytes), serial);
    LongSums sums;
    // The full row of a forward product; all columns of dX; all elements of dW.
    const std::int64_t full = c.rows / 2, first = instance.crow[full];
    for (std::int64_t t = 0; t < out.rows; ++t) switch (c.direction) {
        case Direction::forward:
          sums.add(out.at(t, full), c.cols, [&](std::int64_t i) {
            return Factors{instance.a.at(t, i), instance.values.at(0, first + i)};
          });
          break;
        case Direction::dx:
          for (std::int64_t j = 0; j < c.cols; ++j) {
            const std::int64_t begin = instance.ccol[j];
            sums.add(out.at(t, j), instance.ccol[j + 1] - begin, [&](std::int64_t i) {
              return Factors{instance.a.at(t, instance.row[begin + i]),
                             instance.values.at(0, instance.slot[begin + i])};
            });
          }
          break;
        case Direction::dw:
          for (std::int64_t p = 0; p < instance.w.stored; ++p) {
            const std::int64_t row = instance.row[p], slot = instance.slot[p];
            sums.add(out.at(0, slot), c.m, [&](std::int64_t i) {
              return Factors{instance.a.at(i, row), instance.b.at(i, instance.col[slot])};
            });
          }
          break;
      }
    sums.expect_short_chains(c.text() + " by " + each.kernel);
  }
}

TEST(LongSums, OfElements) {
  for (const std::int64_t m : {32, 130}) check_csr({DType::f32, m, 2, 65536});
  // A row of W that one token multiplies is one sum.
  check_csr({DType::f32, 600, 16384, 4, Direction::dx});
  check_csr({DType::f32, 1100, 16384, 2, Direction::dx});
  check_csr({DType::f32, 98304, 5, 24, Direction::dw});
}

TEST(LongSums, OfOneTokenByElements) {
  // One token has one full row, so the sums of many tokens are taken one by one.
  constexpr std::int64_t kCols = 65536;
  core::Rng rng(7);
  std::vector<std::int32_t> crow, col;
  for (std::int64_t r = 0; r <= 32; ++r) crow.push_back(static_cast<std::int32_t>(r * kCols));
  for (std::int64_t i = 0; i < 32 * kCols; ++i) col.push_back(static_cast<std::int32_t>(i % kCols));
  std::vector<float> values(col.size()), x(kCols), dy(32), y(32);
  for (std::vector<float>* each : {&values, &x})
    for (float& value : *each) value = static_cast<float>(2 * rng.uniform() - 1);
  CsrView w;
  w.rows = 32, w.cols = kCols, w.stored = std::ssize(col), w.crow = crow.data(), w.col = col.data();
  const auto problem = CsrLinear::describe(w, Direction::forward, DType::f32, 1);
  const Executor serial = Executor::serial();
  for (const Candidate& each : CsrLinear::plan(problem, serial, "reference")->candidates) {
    if (!each.refusal.empty() || each.kernel == "reference") continue;
    const auto plan = CsrLinear::plan(problem, serial, each.kernel);
    MatmulArgs args;
    args.a = x.data(), args.a_stride = kCols, args.values = values.data();
    args.out = y.data(), args.out_stride = 32;
    Workspace workspace;
    CsrLinear::run(*plan, args, w, workspace.at_least(plan->workspace_bytes), serial);
    LongSums sums;
    for (std::int64_t r = 0; r < 32; ++r)
      sums.add(y[r], kCols, [&](std::int64_t i) { return Factors{x[i], values[r * kCols + i]}; });
    sums.expect_short_chains(each.kernel);
  }
}

TEST(LongSums, OfNmg) {
  for (const auto& [m, n, g] : {std::tuple<std::int64_t, std::int64_t, std::int64_t>{8, 3, 4}, {4, 1, 4}}) {
    constexpr std::int64_t kRows = 56, kCols = 40000;
    core::Rng rng(9);
    std::vector<float> dense(kRows * kCols), x(49 * kCols);
    for (std::vector<float>* each : {&dense, &x})
      for (float& value : *each) value = static_cast<float>(2 * rng.uniform() - 1);
    NmgView w = nmg_view("test", kRows, kCols, n, m, g);
    std::vector<std::int16_t> order(static_cast<std::size_t>(w.chunks() * w.strips() * w.chunk_rows()));
    const Executor serial = Executor::serial();
    nmg_order(view(dense.data(), kRows, kCols), w, order.data(), serial);
    w.order = order.data();
    std::vector<float> values(static_cast<std::size_t>(Nmg::stored(w)));
    nmg_pack(view(dense.data(), kRows, kCols), w, values.data(), serial);
    for (const std::int64_t tokens : {1, 8, 49}) {
      const auto problem = NmgLinear::describe(w, Direction::forward, DType::f32, tokens);
      for (const Candidate& each : NmgLinear::plan(problem, serial, "reference")->candidates) {
        if (!each.refusal.empty() || each.kernel == "reference") continue;
        const auto plan = NmgLinear::plan(problem, serial, each.kernel);
        std::vector<float> y(static_cast<std::size_t>(tokens * kRows));
        MatmulArgs args;
        args.a = x.data(), args.a_stride = kCols, args.values = values.data();
        args.out = y.data(), args.out_stride = kRows;
        Workspace workspace;
        NmgLinear::run(*plan, args, w, workspace.at_least(plan->workspace_bytes), serial);
        LongSums sums;
        for (std::int64_t row = 0; row < kRows; ++row) {
          std::vector<Factors> terms;
          for (std::int64_t t = 0; t < tokens; ++t) {
            terms.clear();
            Nmg::for_each_in_row(w, row, [&](std::int64_t col, std::int64_t slot) {
              terms.emplace_back(x[t * kCols + col], values[slot]);
            });
            sums.add(y[t * kRows + row], std::ssize(terms), [&](std::int64_t i) { return terms[i]; });
          }
        }
        sums.expect_short_chains(each.kernel + " " + std::to_string(n) + ":" + std::to_string(m) +
                                 " m=" + std::to_string(tokens));
      }
    }
  }
}

TEST(LongSums, OfBiasGradients) {
  constexpr std::int64_t kTokens = 300000, kCols = 40;
  core::Rng rng(11);
  std::vector<float> dy(kTokens * kCols), dbias(kCols);
  for (float& value : dy) value = static_cast<float>(2 * rng.uniform() - 1);
  kernels::cpu::GradientArgs args;
  args.dy = view(dy.data(), kTokens, kCols), args.dbias = dbias.data();
  Workspace workspace;
  args.workspace = workspace.at_least(kernels::cpu::gradient_workspace(args.dy)).data();
  kernels::cpu::gradient(args, Executor::serial());
  LongSums sums;
  for (std::int64_t c = 0; c < kCols; ++c)
    sums.add(dbias[c], kTokens, [&](std::int64_t t) { return Factors{dy[t * kCols + c], 1}; });
  sums.expect_short_chains("dbias");
}

}  // namespace
}  // namespace sparseloom
