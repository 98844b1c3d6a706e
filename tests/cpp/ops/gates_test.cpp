// gate_blocks and gate_gradients on the CPU, element by element.
#include "sparseloom/gates.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/expect_error.h"
#include "kernels/gates_case.h"
#include "sparseloom/ops.h"

namespace sparseloom::testing {
namespace {

using test::expect_error;

struct Gated {
  std::vector<std::int32_t> index, place;
  std::vector<std::byte> values;

  Gated(const GatesCase& c, const Executor& executor)
      : index(c.packed.size(), -7), place(c.gates.size(), -7), values(c.values.size(), std::byte{0xff}) {
    gate_blocks(c.index.view(), c.index.transposed(), c.dtype, c.values.data(), c.gates.data(),
                {index.data(), values.data(), place.data()}, {}, executor);
  }
};

class Gates : public ::testing::TestWithParam<DType> {};

const std::vector<GatesShape> kShapes = {{70, 90, {16, 8}, 0.4, 5},
                                         {64, 64, {32, 32}, 1.0, 0},
                                         {64, 128, {8, 64}, 0.7, 10},
                                         {16, 16, {16, 16}, 0.0, 5}};

TEST_P(Gates, LeaveTheBlocksThatAreNotZeroTimesTheirGates) {
  for (const GatesShape& shape : kShapes) {
    const GatesCase c(GetParam(), shape);
    for (const Executor& executor : {Executor::serial(), Executor::pool(3)}) {
      const Gated gated(c, executor);
      EXPECT_EQ(gated.index, c.left());
      std::int32_t live = 0;
      std::vector<std::byte> wanted(c.values.size());
      for (std::int64_t i = 0; i < c.blocks(); ++i) {
        ASSERT_EQ(gated.place[i], c.gates[i] != 0 ? live : -1);
        if (c.gates[i] == 0) continue;
        for (std::int64_t e = 0; e < c.size(); ++e)
          kernels::store(
              c.dtype, wanted.data(), live * c.size() + e,
              static_cast<double>(c.gates[i]) * kernels::load(c.dtype, c.values.data(), i * c.size() + e));
        ++live;
      }
      EXPECT_EQ(gated.values, wanted);
    }
  }
}

TEST_P(Gates, GiveTheirGradients) {
  for (const GatesShape& shape : kShapes) {
    const GatesCase c(GetParam(), shape);
    const Gated gated(c, Executor::serial());
    std::vector<std::byte> dvalues(c.values.size(), std::byte{0xff}), wanted(c.values.size());
    std::vector<float> dgates(c.gates.size(), -1);
    gate_gradients({c.dtype, shape.block, c.blocks(), c.values.data(), c.gates.data(), gated.place.data(),
                    c.gradient.data(), dvalues.data(), dgates.data()},
                   Executor::pool(2));
    for (std::int64_t i = 0; i < c.blocks(); ++i) {
      double sum = 0;
      for (std::int64_t e = 0; gated.place[i] >= 0 && e < c.size(); ++e) {
        const double g = kernels::load(c.dtype, c.gradient.data(), gated.place[i] * c.size() + e);
        kernels::store(c.dtype, wanted.data(), i * c.size() + e, static_cast<double>(c.gates[i]) * g);
        sum += g * kernels::load(c.dtype, c.values.data(), i * c.size() + e);
      }
      ASSERT_EQ(dgates[i], static_cast<float>(sum)) << i;
    }
    EXPECT_EQ(dvalues, wanted);
    gate_gradients({c.dtype, shape.block, c.blocks(), c.values.data(), c.gates.data(), gated.place.data(),
                    c.gradient.data(), nullptr, nullptr},
                   Executor::serial());  // nothing is wanted
  }
}

INSTANTIATE_TEST_SUITE_P(, Gates, ::testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(GatesErrors, NameTheDtype) {
  const GatesCase c(DType::f64, {16, 16, {8, 8}, 1.0, 0});
  expect_error("gate_blocks", {"f32, f16 or bf16", "f64"}, [&] { Gated(c, Executor::serial()); });
  expect_error("gate_gradients", {"f32, f16 or bf16", "f64"}, [&] {
    gate_gradients({.dtype = DType::f64, .block = {8, 8}}, Executor::serial());
  });
}

}  // namespace
}  // namespace sparseloom::testing
