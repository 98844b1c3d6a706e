// The recurrent cells on the CPU: fp64 against its formulas and central differences, the others against fp64.
#include "sparseloom/recurrent.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/expect_error.h"
#include "kernels/recurrent_case.h"

namespace sparseloom::testing {
namespace {

using test::expect_error;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

auto memory_of(Cells& cells) {
  return [&cells](const char* name) { return static_cast<void*>(cells.all.at(name).data()); };
}

struct Step {
  double h, c;
};
Step lstm(const double (&z)[4], double c) {
  c = sigmoid(z[1]) * c + sigmoid(z[0]) * std::tanh(z[2]);
  return {sigmoid(z[3]) * std::tanh(c), c};
}
double gru(const double (&x)[3], const double (&g)[3], double h) {
  const double r = sigmoid(x[0] + g[0]), u = sigmoid(x[1] + g[1]), m = std::tanh(x[2] + r * g[2]);
  return (1 - u) * m + u * h;
}

/// The derivative of f at a number that f reads.
template <class F>
double slope(double& at, F f) {
  const double kept = at, step = 1e-5;
  at = kept + step;
  const double above = f();
  at = kept - step;
  const double below = f();
  at = kept;
  return (above - below) / (2 * step);
}

TEST(RecurrentCells, LstmIsItsFormulaInFp64) {
  Cells cells = lstm_cells(DType::f64, 3, 5);
  const std::vector<double> z = cells.read("z"), before = cells.read("c_before"), dy = cells.read("dy"),
                            dh = cells.read("dh"), dc = cells.read("dc");
  run_lstm(cells, Executor::serial(), memory_of(cells));
  const std::vector<double> h = cells.read("h"), c = cells.read("c"), dz = cells.read("dz"),
                            dbefore = cells.read("dc");
  for (int row = 0; row < 3; ++row)
    for (int j = 0; j < 5; ++j) {
      const int at = row * 5 + j;
      double gates[4], state = before[at];
      for (int k = 0; k < 4; ++k) gates[k] = z[(row * 4 + k) * 5 + j];
      EXPECT_NEAR(h[at], lstm(gates, state).h, 1e-15);
      EXPECT_NEAR(c[at], lstm(gates, state).c, 1e-15);
      const auto loss = [&] {
        const Step step = lstm(gates, state);
        return (dy[at] + dh[at]) * step.h + dc[at] * step.c;
      };
      for (int k = 0; k < 4; ++k) EXPECT_NEAR(dz[(row * 4 + k) * 5 + j], slope(gates[k], loss), 1e-8) << k;
      EXPECT_NEAR(dbefore[at], slope(state, loss), 1e-8);
    }
}

TEST(RecurrentCells, GruIsItsFormulaInFp64) {
  Cells cells = gru_cells(DType::f64, 3, 5);
  run_gru(cells, Executor::serial(), memory_of(cells));
  const std::vector<double> x = cells.read("x"), g = cells.read("g"), before = cells.read("h_before"),
                            h = cells.read("h"), dx = cells.read("dx"), dg = cells.read("dg");
  const std::vector<double> dy = cells.read("dy"), dh = cells.read("dh"), more = cells.read("more"),
                            dbefore = cells.read("dh_before");
  for (int row = 0; row < 3; ++row)
    for (int j = 0; j < 5; ++j) {
      const int at = row * 5 + j;
      double a[3], b[3], state = before[at];
      for (int k = 0; k < 3; ++k) a[k] = x[(row * 3 + k) * 5 + j], b[k] = g[(row * 3 + k) * 5 + j];
      EXPECT_NEAR(h[at], gru(a, b, state), 1e-15);
      const auto loss = [&] { return (dy[at] + dh[at] + more[at]) * gru(a, b, state); };
      for (int k = 0; k < 3; ++k) {
        EXPECT_NEAR(dx[(row * 3 + k) * 5 + j], slope(a[k], loss), 1e-8) << k;
        EXPECT_NEAR(dg[(row * 3 + k) * 5 + j], slope(b[k], loss), 1e-8) << k;
      }
      EXPECT_NEAR(dbefore[at], slope(state, loss), 1e-8);  // what does not come through the product
    }
}

struct Sizes {
  std::int64_t n, hidden;
};

class RecurrentCellsOf : public ::testing::TestWithParam<DType> {};

// Whole vectors, tails, several tasks, one unit.
const std::vector<Sizes> kSizes = {{3, 32}, {2, 13}, {5, 1100}, {1, 1}};

template <class Make, class Run>
void expect_as_in_fp64(DType dtype, Make make, Run run, std::initializer_list<const char*> results,
                       std::initializer_list<const char*> states) {
  for (const Sizes& size : kSizes) {
    Cells exact = make(DType::f64, size.n, size.hidden);
    run(exact, Executor::serial(), memory_of(exact));
    for (const Executor& executor : {Executor::serial(), Executor::pool(3)}) {
      Cells cells = make(dtype, size.n, size.hidden);
      run(cells, executor, memory_of(cells));
      const auto expect_near = [&](const char* name, bool state) {
        const std::vector<double> found = cells.read(name, state), wanted = exact.read(name, state);
        for (std::size_t i = 0; i < found.size(); ++i)
          ASSERT_NEAR(found[i], wanted[i], cell_tolerance(dtype))
              << name << " " << i << " of " << size.hidden;
      };
      for (const char* name : results) expect_near(name, false);
      for (const char* name : states) expect_near(name, true);
    }
  }
}

TEST_P(RecurrentCellsOf, LstmIsThatOfFp64Rounded) {
  expect_as_in_fp64(GetParam(), lstm_cells, [](auto&&... all) { run_lstm(all...); }, {"gates", "h", "dz"},
                    {"c", "dc"});
}

TEST_P(RecurrentCellsOf, GruIsThatOfFp64Rounded) {
  expect_as_in_fp64(GetParam(), gru_cells, [](auto&&... all) { run_gru(all...); },
                    {"gates", "h", "dx", "dg", "dh_before"}, {});
}

TEST_P(RecurrentCellsOf, GatesMayLieSideBySide) {
  for (const std::int64_t side : {16, 48}) {
    Cells plain = lstm_cells(GetParam(), 3, 96), cells = plain;
    cells.all["z"] = beside(plain, "z", side);
    run_lstm(plain, Executor::serial(), memory_of(plain));
    run_lstm(cells, Executor::serial(), memory_of(cells), side);
    for (const char* name : {"h", "c", "dc"}) EXPECT_EQ(cells.all[name], plain.all[name]) << name;
    for (const char* name : {"gates", "dz"}) EXPECT_EQ(cells.all[name], beside(plain, name, side)) << name;
  }
}

TEST(RecurrentCells, RefuseASideThatDoesNotFit) {
  for (const std::int64_t side : {-16, 8, 32}) {
    const LstmCell cell{.dtype = DType::f32, .n = 1, .hidden = 48, .side = side};
    expect_error("lstm_cell", {"divides 48", std::to_string(side)},
                 [&] { lstm_cell(cell, Executor::serial()); });
  }
}

INSTANTIATE_TEST_SUITE_P(All, RecurrentCellsOf, ::testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(RecurrentCells, ForInferenceNeedNoGatesAndMayOverwriteTheState) {
  Cells kept = lstm_cells(DType::f32, 4, 20), cells = kept;
  run_lstm(kept, Executor::serial(), memory_of(kept));
  const auto at = memory_of(cells);
  lstm_cell({DType::f32, 4, 20, at("z"), at("c_before"), nullptr, at("c_before"), at("h")},
            Executor::serial());
  EXPECT_EQ(cells.all.at("h"), kept.all.at("h"));
  EXPECT_EQ(cells.all.at("c_before"), kept.all.at("c"));
}

TEST(RecurrentCells, TanhKeepsSmallNumbersAndSaturates) {
  const std::vector<float> numbers = {0.0f, 1e-30f, -1e-6f, 0.1f, -0.624f, 0.626f, 3.0f, -20.0f, 200.0f};
  const std::int64_t hidden = static_cast<std::int64_t>(numbers.size());
  std::vector<float> z(4 * numbers.size(), 60.0f), c(numbers.size(), 0.0f), h(numbers.size());
  std::copy(numbers.begin(), numbers.end(), z.begin() + 2 * hidden);  // i, f and o are 1
  lstm_cell({DType::f32, 1, hidden, z.data(), c.data(), nullptr, c.data(), h.data()}, Executor::serial());
  for (std::size_t i = 0; i < numbers.size(); ++i) EXPECT_FLOAT_EQ(c[i], std::tanh(numbers[i])) << i;
}

TEST(RecurrentCells, RefuseADtypeWithoutCells) {
  Cells cells = lstm_cells(DType::f32, 1, 8);
  const auto at = memory_of(cells);
  expect_error("lstm_cell", {"f32", "int8"}, [&] {
    lstm_cell({DType::i8, 1, 8, at("z"), at("c_before"), nullptr, at("c"), at("h")}, Executor::serial());
  });
}

}  // namespace
}  // namespace sparseloom::testing
