// The same bits in every run, on every stream and in a graph, and errors that come back.
#include "kernels/cuda/contract.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/verb.h"

namespace sparseloom::testing {
namespace {

TEST_P(CudaContract, SameBitsInEveryRun) {
  for (const Case& c : {ragged(5), ragged(60), ragged(700), aligned(700)}) {
    Instance instance(c);
    for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
      const Stream stream;
      DeviceCall call(instance, *kernel);
      call.upload(stream);
      EXPECT_CUDA(call.launch(stream.get()));
      const Matrix first = call.download(stream);
      EXPECT_EQ(run_on_device(instance, *kernel).bytes, first.bytes) << kernel->name << ", memory of its own";
      if (GetParam().accumulate) continue;     // it would be added twice more: see accumulate_test.cpp
      EXPECT_CUDA(call.launch(stream.get()));  // on what the first left in output and workspace
      EXPECT_CUDA(call.launch(stream.get()));
      EXPECT_EQ(call.download(stream).bytes, first.bytes) << kernel->name << ", again";
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
        EXPECT_EQ(calls[i].download(streams[i]).bytes, alone.bytes) << kernel->name << " " << i;
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
          EXPECT_EQ(run_on_device(instance, *kernel).bytes, alone.bytes) << kernel->name;
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
    EXPECT_EQ(call.download(stream).bytes, run_on_device(instance, *kernel).bytes) << kernel->name;
  }
}

// Captured once, replayed on other operands in the same memory. A graph of our kernels alone: no copy, no
// memset, no host node.
TEST_P(CudaContract, GraphReplaysOnNewOperands) {
  for (const std::int64_t m : {7, 600}) {
    Instance instance(ragged(m));
    for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
      SCOPED_TRACE(kernel->name);
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

// What a plan never lets pass: operands that are less aligned than the row asks for. The launcher reports
// them and leaves the output alone.
TEST_P(CudaContract, MisalignedOperandsAreReported) {
  for (const std::int64_t m : {20, 300})
    for (const std::int32_t side : {8, 16, 64}) {
      Case c = base();
      c.m = m, c.rows = 256, c.cols = 320, c.block = {side, side}, c.stride_padding = 3, c.values_shift = 1;
      Instance instance(c);
      Problem aligned = instance.cuda_problem(0);
      aligned.aligned = aligned.out_aligned = true;
      for (const kernels::Kernel* kernel : runnable_on_device(aligned)) {
        if (kernel->traits.alignment_of(aligned) == kernels::Aligned::none) continue;
        const Stream stream;
        DeviceCall call(instance, *kernel);
        call.upload(stream);
        EXPECT_EQ(call.launch(stream.get()), cudaErrorInvalidValue) << kernel->name << describe(c);
        EXPECT_EQ(call.download(stream).bytes, instance.poisoned_output().bytes) << kernel->name;
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
    EXPECT_NE(call.launch(nullptr), 0) << kernel->name;
    EXPECT_CUDA(cudaPeekAtLastError()) << kernel->name << " left its error behind";
    cudaGraph_t graph = nullptr;
    static_cast<void>(cudaStreamEndCapture(captured, &graph));
    static_cast<void>(cudaGetLastError());
    if (graph) cudaGraphDestroy(graph);
    cudaStreamDestroy(captured);
    EXPECT_CUDA(call.launch(stream.get())) << kernel->name;
    EXPECT_EQ(call.download(stream).bytes, run_on_device(instance, *kernel).bytes) << kernel->name;
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
        ASSERT_TRUE(out.bytes == first.bytes) << kernel->name << " m=" << m << " run " << i;
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
        const plan::Machine h200{
            runtime::Isa::generic, {}, {90, 132, 50u << 20, 227u << 10, 2e9, 4.8e12}, {}, {132, 66, 32, 16}};
        for (const kernels::Kernel& kernel : kernels::cuda_kernels()) {
          const auto planned = kernels::bsr_linear::ask(kernel, instance.cuda_problem(0), h200);
          if (!planned.refusal.empty()) continue;
          const Image image(instance, planned.workspace_bytes);
          std::vector<std::byte> memory = image.bytes();
          MatmulArgs args = image.args(memory.data());
          args.device = 0;
          EXPECT_NE(kernel.launch(args, planned.schedule, Executor::cuda(0)), 0)
              << kernel.name << " " << describe(c);
          EXPECT_EQ(memory, image.bytes()) << kernel.name;
        }
      }
}

std::vector<int> where_absent() { return when_devices(1).empty() ? std::vector<int>{0} : std::vector<int>{}; }
INSTANTIATE_TEST_SUITE_P(, CudaAbsent, ::testing::ValuesIn(where_absent()));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaAbsent);

}  // namespace
}  // namespace sparseloom::testing
