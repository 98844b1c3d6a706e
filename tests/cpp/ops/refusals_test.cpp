// What users of the headers get wrong: null pointers, numbers that no enumerator has, sizes that overflow,
// and products that no kernel has. Each is an Error, where it was a crash or a wrong result.
#include "ops/refusals.h"

#include <gtest/gtest.h>

#include <memory>

#include "runtime/cpu.h"
#include "sparseloom/conv_ops.h"
#include "sparseloom/gates.h"
#include "sparseloom/gradient_norms.h"
#include "sparseloom/recurrent.h"
#include "sparseloom/topology.h"
#include "sparseloom/unit_norm.h"

namespace sparseloom {
namespace {

using testing::kMost, testing::kSerial, testing::refuse, testing::refuse_null, testing::Small;

TEST(Refusals, OfBlockProducts) {
  Small s;
  const auto plan = [&](Direction direction) {
    return make_plan(describe(s.index, DType::f32, direction, 4), s.index, kSerial);
  };
  const auto forward = plan(Direction::forward), dx = plan(Direction::dx), dw = plan(Direction::dw);
  const auto lent = [&](const Plan& of) { return s.workspace.at_least(of.workspace_bytes); };
  const float* values = s.values.data();
  float* dvalues = s.values.data();
  const auto y = [&] { linear(*forward, s.in(), s.index, values, {}, s.to(), lent(*forward), kSerial); };
  const auto gradient = [&] {
    linear_dx(*dx, s.in(), s.index, s.transposed, values, s.to(), lent(*dx), kSerial);
  };
  refuse_null("linear", "values", values, y);
  refuse_null("linear", "crow", s.index.crow, y);
  refuse_null("linear", "col", s.index.col, y);
  refuse_null("linear_dx", "values", values, gradient);
  refuse_null("linear_dx", "ccol", s.transposed.ccol, gradient);
  refuse_null("linear_dx", "slot", s.transposed.slot, gradient);
  refuse_null("linear_dw", "dvalues", dvalues,
              [&] { linear_dw(*dw, s.in(), s.in(), s.index, dvalues, lent(*dw), kSerial); });
  const auto planned = [&] { plan(Direction::forward); };
  refuse_null("plan", "crow", s.index.crow, planned);
  refuse_null("plan", "col", s.index.col, planned);
  refuse_null("facts_of", "crow", s.index.crow, [&] { facts_of(s.index); });
  refuse_null("pack", "crow", s.index.crow, [&] { pack(s.in(16), s.index, dvalues); });
  refuse_null("unpack", "col", s.index.col, [&] { unpack(s.index, values, s.to(16)); });
  IndexView shapeless = s.index;
  shapeless.block = {};
  refuse("pack", "0x0", [&] { pack(s.in(16), shapeless, dvalues); });
}

TEST(Refusals, OfProblemsThatNoKernelHas) {
  Small s;
  const auto planned = [&](auto change) {
    return [&s, change] {
      Problem problem = describe(s.index, DType::f32, Direction::dx, 4);
      change(problem);
      make_plan(problem, s.index, kSerial);
    };
  };
  refuse("plan", "2^60", planned([](Problem& p) { p.m = kMost; }));
  refuse("plan", "a known dtype, got number 99", planned([](Problem& p) { p.dtype = DType{99}; }));
  refuse("plan", "a known direction", planned([](Problem& p) { p.direction = Direction{9}; }));
  refuse("plan", "a known activation", planned([](Problem& p) { p.activation = Activation{77}; }));
  refuse("BsrMatrix", "a known dtype", [] { BsrMatrix(BlockIndex(pattern::full(8, 8, {8, 8})), DType{99}); });
  refuse("pattern.generate", "got ''", [] { pattern::generate("", 8, 8, {8, 8}, {}, 1); });
  EXPECT_THROW(s.workspace.at_least(std::numeric_limits<std::size_t>::max()), std::bad_alloc);
  std::vector<float> scores(4);
  refuse("block_scores", "a known norm", [&] { block_scores(s.in(16), {8, 8}, BlockNorm{9}, scores); });
}

TEST(Refusals, OfConvolutions) {
  Small s;
  const std::vector<ConvWindow> axes{{4, 3, 1, 1, 1}};
  const ConvShape shape = conv_shape("test", 1, axes);
  const auto planned = [&](Direction direction, auto change) {
    return [&s, &shape, direction, change] {
      bsr_conv::Problem problem = describe_conv(s.index, shape, DType::f32, direction);
      change(problem);
      plan_conv(problem, s.index, kSerial);
    };
  };
  using P = bsr_conv::Problem;
  refuse("plan", "stride", planned(Direction::forward, [](P& p) { p.shape.axis[2].stride = 0; }));
  refuse("plan", "pixels of y", planned(Direction::dx, [](P& p) { p.shape.axis[2].out = 9; }));
  refuse("plan", "m = 4", planned(Direction::forward, [](P& p) { p.m = 5; }));
  refuse("plan", "no accumulation", planned(Direction::dw, [](P& p) { p.accumulate = true; }));
  refuse("plan", "bias", planned(Direction::dw, [](P& p) { p.bias = true; }));
}

TEST(Refusals, OfTheWeightsOfConvolutions) {
  Small s;
  const auto packed = [&](std::int64_t taps, std::int64_t cols, DType dtype, void* values) {
    return [=, &s] { conv_pack({s.a.data(), dtype, 16, cols, cols}, s.index, taps, values, kSerial); };
  };
  packed(3, 48, DType::f32, s.values.data())();
  refuse("conv_pack", "at least one tap", packed(0, 48, DType::f32, s.values.data()));
  refuse("conv_pack", "[rows, taps * cols]", packed(2, 48, DType::f32, s.values.data()));
  refuse("conv_pack", "memory behind values", packed(3, 48, DType::f32, nullptr));
  const auto unpacked = [&](const void* values, void* dense) {
    return [=, &s] { conv_unpack(s.index, 3, values, {dense, DType::f32, 16, 48, 48}, kSerial); };
  };
  unpacked(s.values.data(), s.out.data())();
  refuse("conv_unpack", "memory behind values", unpacked(nullptr, s.out.data()));
  refuse("conv_unpack", "memory behind dense", unpacked(s.values.data(), nullptr));
}

// Not among the Refusals, which run on CPUs of every kind: one without AVX2 has no row of convolutions.
TEST(ConvCalls, RefuseWhatWasNotPlanned) {
  if (!runtime::active_isa().has(runtime::Isa::avx2)) GTEST_SKIP() << "no row of convolutions";
  Small s;
  const std::vector<ConvWindow> axes{{4, 3, 1, 1, 1}};
  const ConvShape shape = conv_shape("test", 1, axes);
  const auto plan =
      plan_conv(describe_conv(s.index, shape, DType::f32, Direction::forward), s.index, kSerial);
  const auto run = [&](const void* bias) {
    conv(*plan, s.in(), s.index, nullptr, bias, s.to(), s.workspace.at_least(plan->workspace_bytes), kSerial);
  };
  refuse("conv", "memory behind values", [&] { run(nullptr); });
  refuse("conv", "no bias, as planned", [&] { run(s.b.data()); });
  bsr_conv::Problem with_bias = describe_conv(s.index, shape, DType::f32, Direction::dx);
  with_bias.bias = true;
  const auto dx = plan_conv(with_bias, s.index, kSerial);
  refuse("conv_dx", "a bias, as planned", [&] {
    conv_dx(*dx, s.in(), s.index, s.transposed, s.values.data(), s.to(),
            s.workspace.at_least(dx->workspace_bytes), kSerial);
  });
}

TEST(Refusals, OfTopologies) {
  Small s;
  std::vector<std::uint8_t> cells(4, 1);
  std::uint8_t* mask = cells.data();
  std::vector<std::int32_t> moved(2), requested(1), flags(1);
  TopologyTables tables{2,
                        2,
                        2,
                        s.crow.data(),
                        s.col.data(),
                        s.ccol.data(),
                        s.row.data(),
                        s.slot.data(),
                        moved.data(),
                        requested.data()};
  const auto set = [&] { set_topology(mask, tables); };
  const auto update = [&] { update_topology(mask, tables, flags.data(), {}, kSerial); };
  refuse_null("set_topology", "mask", mask, set);
  refuse_null("set_topology", "crow", tables.crow, set);
  refuse_null("set_topology", "moved", tables.moved, set);
  refuse_null("update_topology", "requested", tables.requested, update);
  tables.capacity = 5;
  refuse("set_topology", "tables of 0 to 4 blocks", set);
  const double budget[2] = {2, 0.5};
  BlockChoice choice{2, 2, 2, s.crow.data(), s.col.data(), s.a.data(), nullptr, budget};
  const auto choose = [&] { choose_blocks(choice, mask, flags.data()); };
  refuse_null("choose_blocks", "scores", choice.scores, choose);
  refuse_null("choose_blocks", "budget", choice.budget, choose);
  float* values = s.values.data();
  refuse_null("move_blocks", "values", values,
              [&] { move_blocks(values, 256, moved, s.workspace.at_least(512), kSerial); });
  for (const std::int64_t bytes : {std::int64_t{-256}, kMost})
    refuse("move_blocks", "counted in 64 bits",
           [&] { move_blocks(values, bytes, moved, s.workspace.at_least(512), kSerial); });
  refuse("clear_free_blocks", "counted in 64 bits",
         [&] { clear_free_blocks(values, 256, s.crow.data(), -2, kSerial); });
}

TEST(Refusals, OfGatesNormsAndCells) {
  Small s;
  std::vector<std::int32_t> packed(static_cast<std::size_t>(index_segments(2, 2, 2).size)), place(2);
  const GatedBlocks gated{packed.data(), s.out.data(), place.data()};
  const float* gates = s.a.data();
  refuse_null("gate_blocks", "gates", gates, [&] {
    gate_blocks(s.index, s.transposed, DType::f32, s.values.data(), gates, gated, {}, kSerial);
  });
  GateGradients gradients{DType::f32, {8, 8}, 2, s.a.data(), gates, place.data(), s.b.data(), s.out.data()};
  const auto gate = [&] { gate_gradients(gradients, kSerial); };
  refuse_null("gate_gradients", "place", gradients.place, gate);
  gradients.blocks = -1;
  refuse("gate_gradients", "0 or more blocks", gate);
  std::vector<float> norms(4);
  const std::size_t bytes = block_gradient_norms_workspace(s.in(), s.in(), {8, 8}, kSerial);
  refuse("block_gradient_norms", "a known norm", [&] {
    block_gradient_norms(s.in(), s.in(), {8, 8}, BlockNorm{9}, norms, s.workspace.at_least(bytes), kSerial);
  });
  float *in = s.a.data(), *out = s.out.data();
  LstmCell lstm{DType::f32, 2, 16, in, in, nullptr, out, out + 1024};
  refuse_null("lstm_cell", "z", lstm.z, [&] { lstm_cell(lstm, kSerial); });
  GruCell gru{DType::f32, 2, 16, in, in, in, nullptr, out};
  refuse_null("gru_cell", "h", gru.h, [&] { gru_cell(gru, kSerial); });
  UnitNormGradient norm;
  norm.norm.n = 2, norm.norm.hidden = 16, norm.norm.z = in, norm.norm.weight = in, norm.norm.bias = in;
  norm.dy = in, norm.dz = out;
  refuse("unit_norm_gradient", "memory behind statistics", [&] { unit_norm_gradient(norm, kSerial); });
}

}  // namespace
}  // namespace sparseloom
