// A call opens one parallel region: beside busy processes each region waits for the scheduler. Its phases and
// work items are done once each, whoever comes.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/counting.h"
#include "kernels/case.h"
#include "kernels/shared/cpu/claims.h"
#include "layout/bsr.h"
#include "sparseloom/generic/dense.h"

namespace sparseloom::testing {
namespace {

namespace cpu = kernels::cpu;

TEST(Regions, OnePerCall) {
  for (const Direction direction : {Direction::forward, Direction::dx, Direction::dw})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (const std::int64_t m : {3, 100, 7000}) {  // decode; one chunk of tokens; several
        Case c;
        c.direction = direction, c.dtype = dtype, c.m = m, c.rows = 520, c.cols = 720, c.block = {16, 32},
        c.density = 0.5;
        Instance instance(c);
        for (const kernels::Kernel* kernel : runnable(instance.problem(1))) {
          const std::string_view name = kernel->name;
          if (m == 7000 && name.ends_with("emulated")) continue;  // takes seconds
          SCOPED_TRACE(name);
          int regions = 0;
          const Matrix out = instance.run(*kernel, counting(regions));
          EXPECT_LE(regions, 1);
          EXPECT_TRUE(regions == 1 || m == 3);  // AMX does three tokens on one thread
          EXPECT_EQ(out.bytes, instance.run(*kernel, Executor::serial()).bytes);
          EXPECT_EQ(out.bytes, instance.run(*kernel, Executor::pool(4)).bytes);
        }
      }
}

TEST(Regions, NoneForACallThatIsDoneBeforeTheThreadsCome) {
  Case c;
  c.dtype = DType::f32, c.m = 100, c.rows = 520, c.cols = 720, c.block = {16, 32}, c.density = 0.5;
  for (const Direction direction : {Direction::forward, Direction::dx, Direction::dw}) {
    c.direction = direction;
    Instance instance(c);
    for (const kernels::Kernel* kernel : runnable(instance.problem(1)))
      if (std::string_view(kernel->name).ends_with("panel")) {
        SCOPED_TRACE(kernel->name);
        int regions = 0;
        Executor late = counting(regions);
        late.late_us = 8000;
        const Matrix alone = instance.run(*kernel, late);
        EXPECT_EQ(regions, 0);
        late.late_us = 20;
        EXPECT_EQ(alone.bytes, instance.run(*kernel, late).bytes);
        EXPECT_EQ(regions, 1);
      }
  }
}

TEST(Regions, OneOnEitherSideOfALentGemmAndNoneWhereThreadsComeLate) {
  for (const Activation activation : {Activation::none, Activation::silu}) {
    Case c;
    c.m = 100, c.rows = 520, c.cols = 720, c.block = {16, 32}, c.density = 0.5, c.activation = activation;
    Instance instance(c);
    std::vector<float> dense(520 * 720);
    int regions = 0;
    Executor executor = counting(regions);
    executor.gemm = [](void*, const Gemm& product) {
      for (std::int64_t r = 0; r < product.c.rows; ++r)
        std::fill_n(static_cast<float*>(product.c.data) + r * product.c.stride, product.c.cols, 1.0f);
    };
    const auto run = [&] {
      Matrix out = instance.poisoned_output();
      MatmulArgs args = instance.args();
      args.out = out.data(), args.out_stride = out.stride;
      args.workspace = reinterpret_cast<std::byte*>(dense.data());
      EXPECT_EQ(kernels::generic::dense_on_cpu<layout::Bsr>(args, args.index, executor), 0);
      return out;
    };
    const Matrix out = run();
    const std::vector<float> scattered = std::exchange(dense, std::vector<float>(520 * 720));
    const int wanted = activation == Activation::none ? 1 : 2;
    EXPECT_EQ(regions, wanted);
    executor.late_us = 1e5;
    EXPECT_EQ(out.bytes, run().bytes);
    EXPECT_EQ(scattered, dense);
    EXPECT_EQ(regions, wanted);
  }
}

// Calls body(task) on `count` threads at once.
template <class Body>
void on_threads(int count, const Body& body) {
  std::vector<std::thread> threads;
  for (int task = 0; task < count; ++task) threads.emplace_back([&body, task] { body(task); });
  for (std::thread& thread : threads) thread.join();
}

TEST(Regions, APhaseSeesAllOfThePhaseBefore) {
  constexpr std::int64_t kItems = 500;
  for (const int threads : {1, 2, 5}) {
    std::vector<std::int64_t> first(kItems), second(kItems);
    cpu::Stage stage{cpu::Phase(kItems), cpu::Phase(kItems)};
    on_threads(threads, [&](int) {
      stage.packing.work([&](std::int64_t i) { first[i] += i; });
      stage.packing.wait();
      stage.products.work([&](std::int64_t i) { second[i] += first[kItems - 1 - i]; });
      stage.products.wait();
      EXPECT_EQ(second[0], kItems - 1);
    });
    for (std::int64_t i = 0; i < kItems; ++i) EXPECT_EQ(second[i], kItems - 1 - i);
  }
}

TEST(Regions, PartsAreDoneOnceByWhoeverComes) {
  for (const int come : {1, 2, 5}) {
    std::atomic<int> done[40] = {};
    cpu::Parts parts(40, 5);
    on_threads(come, [&](int task) { parts.work(task, [&](std::int64_t part) { ++done[part]; }); });
    for (const std::atomic<int>& count : done) EXPECT_EQ(count, 1);
  }
}

}  // namespace
}  // namespace sparseloom::testing
