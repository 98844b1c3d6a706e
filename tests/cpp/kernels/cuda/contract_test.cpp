// What holds beside accuracy: the same bits in every run, on every stream and in a graph, NaN where it
// belongs, errors that come back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/device_call.h"
#include "kernels/cuda/kernels.h"

namespace sparseloom::testing {
namespace {

constexpr BlockShape kBlocks[] = {{8, 8}, {8, 128}, {16, 16}, {32, 8}, {64, 64}, {128, 16}, {128, 128}};

struct BlockAndAlignment {
  BlockShape block;
  bool aligned;  // rows of x and dy in multiples of 16 bytes, which TMA asks for
};

// The kernels on TMA take large blocks alone.
std::vector<BlockAndAlignment> blocks_and_alignments() {
  std::vector<BlockAndAlignment> list;
  for (const BlockShape block : kBlocks) list.push_back({block, false});
  for (const BlockShape block : {BlockShape{32, 32}, {32, 128}, {64, 64}, {128, 128}})
    list.push_back({block, true});
  return list;
}

class CudaContract : public OnDevice {
 protected:
  // Several tiles of tokens and of everything else, ragged, with rows that are not aligned.
  Case ragged(std::int64_t m) const {
    Case c = base();
    c.m = m, c.rows = 290, c.cols = 331, c.block = {32, 16}, c.stride_padding = 2;
    return c;
  }
  // For the kernels on TMA.
  Case aligned(std::int64_t m) const {
    Case c = base();
    c.m = m, c.rows = 280, c.cols = 328, c.block = {32, 64};
    return c;
  }
};

enum class Poison { quiet_nan, all_ones, infinity };

void set(Matrix& matrix, std::int64_t r, std::int64_t c, Poison poison) {
  switch (poison) {
    case Poison::quiet_nan: matrix.set(r, c, std::numeric_limits<double>::quiet_NaN()); break;
    case Poison::all_ones: matrix.poison(r, c); break;
    case Poison::infinity: matrix.set(r, c, std::numeric_limits<double>::infinity()); break;
  }
}

// The fp64 answer multiplies stored blocks alone, so it is not finite exactly where the kernel's may not be;
// every other element keeps the bits it had without the poison.
void expect_contained(Instance& instance, const kernels::Kernel& kernel, const Matrix& clean) {
  const Instance::Answer answer = instance.answer();
  const Matrix out = run_on_device(instance, kernel);
  for (std::int64_t r = 0; r < out.rows; ++r)
    for (std::int64_t c = 0; c < out.cols; ++c) {
      const bool finite = std::isfinite(answer.exact[static_cast<std::size_t>(r * out.cols + c)]);
      ASSERT_EQ(std::isfinite(out.at(r, c)), finite)
          << kernel.info.name << " " << describe(instance.c) << " at " << r << ", " << c;
      if (finite) {
        ASSERT_EQ(out.at(r, c), clean.at(r, c))
            << kernel.info.name << " " << describe(instance.c) << " at " << r << ", " << c;
      }
    }
}

TEST_P(CudaContract, NotANumberStaysUnderStoredBlocks) {
  int tried = 0;
  for (const auto [block, aligned] : blocks_and_alignments())
    for (const std::int64_t m : {6, 60}) {
      Case c = base();
      c.m = m, c.rows = 2 * block.rows + (aligned ? 56 : 61), c.cols = 2 * block.cols + (aligned ? 72 : 75),
      c.block = block;
      Instance instance(c);
      for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
        if (kernel->info.caveat != nullptr) continue;
        const Matrix clean = run_on_device(instance, *kernel);
        const auto try_at = [&](Matrix& operand, std::int64_t row, std::int64_t col) {
          const Matrix before = operand;
          set(operand, row, col, static_cast<Poison>(tried++ % 3));
          expect_contained(instance, *kernel, clean);
          operand = before;
        };
        Matrix& a = c.direction == Direction::forward ? instance.x : instance.dy;
        try_at(a, 3, 0);
        try_at(a, m - 1, a.cols / 2);
        try_at(a, 0, a.cols - 1);  // the last column before what must not be read
        if (c.direction == Direction::dw) {
          try_at(instance.x, 3, 40);
          try_at(instance.x, m - 1, c.cols - 1);
        } else if (instance.values.rows > 0) {
          try_at(instance.values, 0, block.cols / 2);
        }
        if (HasFatalFailure()) return;
      }
    }
}

// A kernel that merges blocks into units of 32 or 16 multiplies all of them where any block is stored, and
// nothing else.
TEST_P(CudaContract, NotANumberStaysUnderMergedUnits) {
  if (GetParam().direction == Direction::dw) return;
  for (const BlockShape block : {BlockShape{8, 8}, {16, 16}, {8, 64}, {128, 16}}) {
    Case c = base();
    c.m = 60, c.rows = 4 * std::max(block.rows, 32), c.cols = 4 * std::max(block.cols, 32), c.block = block,
    c.density = 0.1;
    Instance instance(c);
    const bool dx = c.direction == Direction::dx;
    Matrix& a = dx ? instance.dy : instance.x;
    const std::int64_t poisoned = 7;
    for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
      if (kernel->info.caveat == nullptr) continue;
      const std::int32_t side = std::string(kernel->info.name) == "sm90_mma_merged" ? 16 : 32;
      const std::int64_t unit_rows = std::max(block.rows, side), unit_cols = std::max(block.cols, side);
      std::set<std::pair<std::int64_t, std::int64_t>> units;
      for (std::int64_t r = 0; r + 1 < static_cast<std::int64_t>(instance.crow.size()); ++r)
        for (std::int32_t i = instance.crow[r]; i < instance.crow[r + 1]; ++i)
          units.insert({r * block.rows / unit_rows, instance.col[i] * block.cols / unit_cols});
      const Matrix clean = run_on_device(instance, *kernel), before = a;
      set(a, 3, poisoned, Poison::quiet_nan);
      const Matrix out = run_on_device(instance, *kernel);
      a = before;
      for (std::int64_t t = 0; t < out.rows; ++t)
        for (std::int64_t o = 0; o < out.cols; ++o) {
          const bool under = t == 3 && (dx ? units.count({poisoned / unit_rows, o / unit_cols})
                                           : units.count({o / unit_rows, poisoned / unit_cols}));
          ASSERT_EQ(std::isnan(out.at(t, o)), under)
              << kernel->info.name << " " << describe(c) << " at " << t << ", " << o;
          if (!under) {
            ASSERT_EQ(out.at(t, o), clean.at(t, o))
                << kernel->info.name << " " << describe(c) << " at " << t << ", " << o;
          }
        }
    }
  }
}

// Padded rows and columns of dW stay zero even when the other operand is infinite.
TEST_P(CudaContract, PaddingOfDwIsZero) {
  if (GetParam().direction != Direction::dw) return;  // the other directions store no padding
  for (const auto [block, aligned] : blocks_and_alignments())
    for (const std::int64_t m : {9, 70}) {
      Case c = base();
      c.m = m, c.rows = 2 * block.rows - (aligned ? 8 : 5), c.cols = 2 * block.cols - (aligned ? 8 : 3),
      c.block = block;
      c.density = 1;
      Instance instance(c);
      instance.x.set(2, c.cols - 1, std::numeric_limits<double>::infinity());
      instance.dy.set(2, c.rows - 1, std::numeric_limits<double>::infinity());
      for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
        const Matrix out = run_on_device(instance, *kernel);
        for (std::int64_t b = 0; b < 4; ++b)
          for (std::int64_t i = 0; i < block.rows; ++i)
            for (std::int64_t j = 0; j < block.cols; ++j)
              if (b / 2 * block.rows + i >= c.rows || b % 2 * block.cols + j >= c.cols) {
                ASSERT_EQ(out.at(b * block.rows + i, j), 0)
                    << kernel->info.name << " " << describe(c) << " block " << b;
              }
      }
    }
}

TEST_P(CudaContract, NotANumberPassesThroughTheEpilogue) {
  if (GetParam().direction != Direction::forward) return;  // the only one that has an epilogue
  for (const Activation activation :
       {Activation::relu, Activation::gelu_erf, Activation::gelu_tanh, Activation::silu})
    for (const std::int64_t m : {5, 70}) {
      Case c = base();
      c.m = m, c.rows = 40, c.cols = 64, c.block = {8, 16}, c.bias = true, c.activation = activation;
      Instance instance(c);
      instance.bias.set(0, 5, std::numeric_limits<double>::quiet_NaN());
      for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
        const Matrix out = run_on_device(instance, *kernel);
        for (std::int64_t t = 0; t < c.m; ++t)
          for (std::int64_t o = 0; o < c.rows; ++o)
            ASSERT_EQ(std::isnan(out.at(t, o)), o == 5) << kernel->info.name;
      }
    }
}

TEST_P(CudaContract, NothingStoredIsStillWritten) {
  for (const BlockShape block : kBlocks)
    for (const std::int64_t m : {1, 90}) {
      Case c = base();
      c.m = m, c.rows = 205, c.cols = 171, c.block = block, c.density = 0, c.stride_padding = 1,
      c.integers = true;
      check_on_device(c);
      if (c.direction == Direction::forward) c.bias = true, c.activation = Activation::relu;
      check_on_device(c);
    }
}

TEST_P(CudaContract, SameBitsInEveryRun) {
  for (const Case& c : {ragged(5), ragged(60), ragged(700), aligned(700)}) {
    Instance instance(c);
    for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
      const Stream stream;
      DeviceCall call(instance, *kernel);
      call.upload(stream);
      EXPECT_CUDA(call.launch(stream.get()));
      const Matrix first = call.download(stream);
      EXPECT_EQ(run_on_device(instance, *kernel).bytes, first.bytes)
          << kernel->info.name << ", memory of its own";
      if (GetParam().accumulate) continue;     // it would be added twice more: see accumulate_test.cpp
      EXPECT_CUDA(call.launch(stream.get()));  // on what the first left in output and workspace
      EXPECT_CUDA(call.launch(stream.get()));
      EXPECT_EQ(call.download(stream).bytes, first.bytes) << kernel->info.name << ", again";
    }
  }
}

TEST_P(CudaContract, SameBitsOnTwoStreamsAtOnce) {
  for (const Case& c : {ragged(9), ragged(300), aligned(600)}) {
    Instance instance(c);
    for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
      const Matrix alone = run_on_device(instance, *kernel);
      const Stream streams[2];
      DeviceCall calls[2] = {{instance, *kernel}, {instance, *kernel}};
      for (int i = 0; i < 2; ++i) calls[i].upload(streams[i]);
      for (int round = 0; round < 20; ++round)
        for (int i = 0; i < 2; ++i) {
          if (GetParam().accumulate) calls[i].poison(streams[i]);
          EXPECT_CUDA(calls[i].launch(streams[i].get()));
        }
      for (int i = 0; i < 2; ++i)
        EXPECT_EQ(calls[i].download(streams[i]).bytes, alone.bytes) << kernel->info.name << " " << i;
    }
  }
}

TEST_P(CudaContract, SameBitsFromFourThreads) {
  Instance instance(ragged(40));
  for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
    const Matrix alone = run_on_device(instance, *kernel);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] {
        for (int round = 0; round < 10; ++round)
          EXPECT_EQ(run_on_device(instance, *kernel).bytes, alone.bytes) << kernel->info.name;
      });
    for (std::thread& thread : threads) thread.join();
  }
}

// The legacy default stream, which torch uses as long as it is told of no other.
TEST_P(CudaContract, DefaultStream) {
  Instance instance(ragged(33));
  for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
    const Stream stream;
    DeviceCall call(instance, *kernel);
    call.upload(stream);
    stream.wait();
    EXPECT_CUDA(call.launch(nullptr));
    EXPECT_CUDA(cudaStreamSynchronize(nullptr));
    EXPECT_EQ(call.download(stream).bytes, run_on_device(instance, *kernel).bytes) << kernel->info.name;
  }
}

// Captured once, replayed on other operands in the same memory. A graph of our kernels alone: no copy, no
// memset, no host node.
TEST_P(CudaContract, GraphReplaysOnNewOperands) {
  for (const std::int64_t m : {7, 600}) {
    Instance instance(ragged(m));
    for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
      SCOPED_TRACE(kernel->info.name);
      const Stream stream;
      DeviceCall call(instance, *kernel);
      call.upload(stream);
      EXPECT_CUDA(call.launch(stream.get()));
      const Matrix eager = call.download(stream);

      ASSERT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), cudaSuccess);
      EXPECT_CUDA(call.launch(stream.get()));
      cudaGraph_t graph = nullptr;
      ASSERT_EQ(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
      std::size_t count = 0;
      ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &count), cudaSuccess);
      EXPECT_TRUE(count == 1 || count == 2)
          << count << " nodes: one product is one launch, or one and a sum of its pieces";
      std::vector<cudaGraphNode_t> nodes(count);
      ASSERT_EQ(cudaGraphGetNodes(graph, nodes.data(), &count), cudaSuccess);
      for (const cudaGraphNode_t node : nodes) {
        cudaGraphNodeType type{};
        ASSERT_EQ(cudaGraphNodeGetType(node, &type), cudaSuccess);
        EXPECT_EQ(type, cudaGraphNodeTypeKernel);
      }
      cudaGraphExec_t replay = nullptr;
      ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);

      call.upload(stream);  // poisons the output again
      EXPECT_CUDA(cudaGraphLaunch(replay, stream.get()));
      EXPECT_EQ(call.download(stream).bytes, eager.bytes);

      Matrix& a = instance.c.direction == Direction::forward ? instance.x : instance.dy;
      const Matrix before = a;
      for (std::int64_t t = 0; t < m; ++t) a.set(t, (7 * t) % a.cols, 1.5);
      call.upload(stream);
      EXPECT_CUDA(cudaGraphLaunch(replay, stream.get()));
      if (!GetParam().accumulate) {
        EXPECT_CUDA(cudaGraphLaunch(replay, stream.get()));
      }
      const Matrix again = call.download(stream);
      EXPECT_NE(again.bytes, eager.bytes);
      expect_accurate(instance, again, instance.answer());
      a = before;
      cudaGraphExecDestroy(replay);
      cudaGraphDestroy(graph);
    }
  }
}

// A launch on the legacy stream while another stream is being captured is refused by CUDA: the one impossible
// call that needs no broken arguments. The code must come back, and nothing of it may stay for the next call.
TEST_P(CudaContract, ARefusedLaunchIsReported) {
  Instance instance(ragged(50));
  for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
    const Stream stream;
    DeviceCall call(instance, *kernel);
    call.upload(stream);
    stream.wait();
    cudaStream_t captured = nullptr;
    ASSERT_EQ(cudaStreamCreate(&captured), cudaSuccess);  // one that waits for the legacy stream
    ASSERT_EQ(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal), cudaSuccess);
    EXPECT_NE(call.launch(nullptr), 0) << kernel->info.name;
    EXPECT_CUDA(cudaPeekAtLastError()) << kernel->info.name << " left its error behind";
    cudaGraph_t graph = nullptr;
    static_cast<void>(cudaStreamEndCapture(captured, &graph));
    static_cast<void>(cudaGetLastError());
    if (graph) cudaGraphDestroy(graph);
    cudaStreamDestroy(captured);
    EXPECT_CUDA(call.launch(stream.get())) << kernel->info.name;
    EXPECT_EQ(call.download(stream).bytes, run_on_device(instance, *kernel).bytes) << kernel->info.name;
  }
}

// Beside a stream that keeps the device busy, so that thread blocks meet in ever new orders.
TEST_P(CudaContract, ManyRepeatsBesideABusyStream) {
  const int repeats = GetParam().dtype == DType::bf16 ? 10000 : 1000;
  for (const std::int64_t m : {40, 180}) {  // decode kernels too, and several tiles of tokens
    Case c = ragged(m);
    Instance instance(c);
    c.m = 4000, c.seed = 2;
    Instance other(c);
    for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
      const auto beside = runnable_on_device(other.cuda_problem(0));
      ASSERT_FALSE(beside.empty());
      const Stream stream, busy;
      DeviceCall call(instance, *kernel), load(other, *beside[0]);
      call.upload(stream);
      load.upload(busy);
      EXPECT_CUDA(call.launch(stream.get()));
      const Matrix first = call.download(stream);
      Matrix out = instance.poisoned_output();
      for (int i = 0; i < repeats; ++i) {
        EXPECT_CUDA(load.launch(busy.get()));
        call.poison(stream);
        EXPECT_CUDA(call.launch(stream.get()));
        call.download(stream, out);
        ASSERT_TRUE(out.bytes == first.bytes) << kernel->info.name << " m=" << m << " run " << i;
      }
      busy.wait();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, CudaContract, ::testing::ValuesIn(products_and_sums()), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaContract);

// Where there is no device a call must come back with its error: no crash, no division by zero
// multiprocessors.
class CudaAbsent : public ::testing::TestWithParam<int> {};

TEST_P(CudaAbsent, LaunchesReportAnError) {
  for (const Direction direction : {Direction::forward, Direction::dx, Direction::dw})
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
      for (const bool tf32 : {false, true}) {
        Case c;
        c.direction = direction, c.dtype = dtype, c.tf32 = tf32 && dtype == DType::f32;
        c.m = 20, c.rows = 64, c.cols = 64, c.block = {16, 16}, c.density = 1;
        Instance instance(c);
        const plan::Machine h200{runtime::Isa::generic, {}, {90, 132, 50u << 20, 227u << 10, 2e9, 4.8e12}};
        for (const kernels::Kernel& kernel : kernels::cuda_kernels()) {
          if (!kernel.info.refusal(instance.cuda_problem(0), h200).empty()) continue;
          const Image image(instance, kernel.info.workspace_bytes(instance.cuda_problem(0), h200));
          std::vector<std::byte> memory = image.bytes();
          kernels::MatmulArgs args = image.args(memory.data());
          args.device = 0;
          EXPECT_NE(kernel.launch(args, Executor::cuda(0)), 0) << kernel.info.name << " " << describe(c);
          EXPECT_EQ(memory, image.bytes()) << kernel.info.name;
        }
      }
}

std::vector<int> where_absent() { return when_devices(1).empty() ? std::vector<int>{0} : std::vector<int>{}; }
INSTANTIATE_TEST_SUITE_P(, CudaAbsent, ::testing::ValuesIn(where_absent()));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaAbsent);

}  // namespace
}  // namespace sparseloom::testing
