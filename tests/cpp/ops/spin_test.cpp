// What benchmarks hold a share of the peak against.
#include "ops/spin.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "kernels/bsr_linear/cpu/rates.h"
#include "runtime/cpu.h"
#include "sparseloom/sparseloom.h"

namespace sparseloom {
namespace {

TEST(SpinRegisters, DoesTheSameOnEveryThread) {
  const plan::MachineRates rates = kernels::measure_rates();
  for (const kernels::RateField& field : kernels::rate_fields()) {
    if (field.rate == &plan::MachineRates::copy_bytes || rates.*field.rate == 0) continue;
    const std::int64_t once = ops::spin_registers(field.name, 100, Executor::serial());
    EXPECT_GT(once, 0) << field.name;
    EXPECT_EQ(ops::spin_registers(field.name, 300, Executor::serial()), 3 * once) << field.name;
    int calls = 0;
    Executor three = Executor::serial();
    three.num_threads = 3;
    three.context = &calls;
    three.parallel_for = [](void* context, std::int64_t count, RangeBody body) {
      for (std::int64_t i = 0; i < count; ++i, ++*static_cast<int*>(context)) body(i, i + 1);
    };
    EXPECT_EQ(ops::spin_registers(field.name, 100, three), 3 * once) << field.name;
    EXPECT_EQ(calls, 3) << field.name;
  }
}

double best_spin_rate(const char* name) {
  double best = 0;
  for (int i = 0; i < 200; ++i) {  // some 30 us each: one of them undisturbed
    const auto start = std::chrono::steady_clock::now();
    const auto flops = static_cast<double>(ops::spin_registers(name, 5000, Executor::serial()));
    best = std::max(best,
                    flops / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

// A neighbour on the same physical core comes and goes, and halves what either measures meanwhile: of ten
// pairs, one has to agree.
TEST(SpinRegisters, ReachesTheRateThatWasMeasured) {
  for (const kernels::RateField& field : kernels::rate_fields()) {
    if (field.rate == &plan::MachineRates::copy_bytes || kernels::measure_rates().*field.rate == 0) continue;
    double quotient = 0;
    const auto agree = [&] { return 0.67 < quotient && quotient < 1.5; };
    for (int pair = 0; pair < 10 && !agree(); ++pair)
      quotient = best_spin_rate(field.name) / kernels::measure_rates().*field.rate;
    EXPECT_TRUE(agree()) << field.name << " " << quotient;
  }
}

TEST(SpinRegisters, RefusesWhatIsNoPeakHere) {
  const auto expect_refusal = [](const std::string& rate, std::int64_t rounds, const std::string& said) {
    try {
      ops::spin_registers(rate, rounds, Executor::serial());
      FAIL() << rate;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(said), std::string::npos) << error.what();
    }
  };
  expect_refusal("copy_bytes", 1, "a register peak of this CPU");
  expect_refusal("f64", 1, "'f64'");
  if (!runtime::active_isa().has(runtime::Isa::amx)) expect_refusal("bf16_amx", 1, "'bf16_amx'");
  if (runtime::active_isa().has(runtime::Isa::avx2)) expect_refusal("f32_avx2", 0, "at least one round");
}

}  // namespace
}  // namespace sparseloom
